// Package saslfiles makes SASL's mechanism of a JAAS file, and of the keytab that it names, and has the mechanism
// follow them while the program runs.
package saslfiles

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper/internal/core/sasl"
	"github.com/lockkeeper/lockkeeper/internal/tools/gssapi"
	"github.com/lockkeeper/lockkeeper/internal/tools/jaas"
	"github.com/lockkeeper/lockkeeper/internal/tools/reread"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Files are the files, and what else says who can authenticate.
type Files struct {
	JAAS, Section           string
	RemoveHost, RemoveRealm bool     // of gssapi.Config
	SuperUsers              []string // must be users of DIGEST-MD5, if that is the mechanism
}

// Keeper has the mechanism. Clients that have authenticated stay so, and what the files say counts for all
// others. The files cannot say another mechanism than at first. Its methods are safe for concurrent use.
type Keeper struct {
	*reread.Keeper
	files    Files
	log      *slog.Logger
	digest   *sasl.DigestMD5   // nil with Kerberos
	kerberos *gssapi.Mechanism // nil without it
}

// Open reads the files. Its errors name the file. One of them is a *SuperUserError.
func Open(files Files, log *slog.Logger) (*Keeper, error) {
	k := &Keeper{files: files, log: log}
	var err error
	k.Keeper, err = reread.Open("SASL", "sasl", source{k}, log)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Begin returns the exchange of tokens with one connection.
func (k *Keeper) Begin() sasl.Exchange {
	if k.kerberos != nil {
		return k.kerberos.Begin()
	}
	return k.digest.Begin()
}

// Kerberos reports whether the mechanism is GSSAPI.
func (k *Keeper) Kerberos() bool { return k.kerberos != nil }

// SuperUserError says that somebody in Files.SuperUsers is no user.
type SuperUserError struct{ User string }

func (e *SuperUserError) Error() string { return fmt.Sprintf("there is no user %q", e.User) }

// source is a Keeper as the source of its files.
type source struct{ *Keeper }

// login returns what the JAAS file says.
func (s source) login(c reread.Contents) (*jaas.Login, error) {
	file := c[s.files.JAAS]
	if file.Err != nil {
		return nil, file.Err
	}
	login, err := jaas.Read(file.Text, s.files.Section)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.files.JAAS, err)
	}
	return login, nil
}

// Read implements reread.Source.
func (s source) Read() reread.Contents {
	c := reread.Read(s.files.JAAS)
	if login, err := s.login(c); err == nil && login.Keytab != "" {
		maps.Copy(c, reread.Read(login.Keytab))
	}
	return c
}

// Load implements reread.Source.
func (s source) Load(c reread.Contents) ([]any, error) {
	login, err := s.login(c)
	if err != nil {
		return nil, err
	}
	for _, what := range login.Ignored {
		s.log.Warn("a part of the file of users has no effect, as in ZooKeeper", "file", s.files.JAAS, "what", what)
	}
	kerberos := login.Principal != "" // as ZooKeeper chooses
	if kerberos && s.digest != nil || !kerberos && s.kerberos != nil {
		return nil, fmt.Errorf("%s: it has users with passwords in place of a principal of Kerberos, or the other way round, which needs a restart", s.files.JAAS)
	}
	if !kerberos {
		if err := s.setUsers(login.Users); err != nil {
			return nil, err
		}
		return []any{"users", len(login.Users)}, nil
	}
	if err := s.setKeys(login, c[login.Keytab]); err != nil {
		return nil, fmt.Errorf("%s: %w", s.files.JAAS, err)
	}
	return []any{"principal", login.Principal, "versions", s.kerberos.Versions()}, nil
}

func (s source) setUsers(users map[string]string) error {
	for _, user := range slices.Sorted(maps.Keys(users)) {
		if user == "" || !utf8.ValidString(user) || !znode.ValidSASL(user) {
			return fmt.Errorf("%s: %q is not a name with which ZooKeeper lets a user authenticate", s.files.JAAS, user)
		}
	}
	for _, user := range s.files.SuperUsers {
		if _, ok := users[user]; !ok {
			return fmt.Errorf("%s: %w, who is to be a super user", s.files.JAAS, &SuperUserError{user})
		}
	}
	if s.digest == nil {
		s.Keeper.digest = sasl.NewDigestMD5(users)
	} else {
		s.digest.SetUsers(users)
	}
	return nil
}

func (s source) setKeys(login *jaas.Login, keytab reread.Content) (err error) {
	if keytab.Err != nil {
		return keytab.Err
	}
	config := gssapi.Config{Keytab: login.Keytab, Principal: login.Principal, RemoveHost: s.files.RemoveHost, RemoveRealm: s.files.RemoveRealm}
	if s.kerberos != nil {
		return s.kerberos.Set(config, keytab.Text)
	}
	s.Keeper.kerberos, err = gssapi.New(config, keytab.Text)
	return err
}
