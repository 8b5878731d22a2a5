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
	k.Keeper, err = reread.Open("SASL", "sasl", k.read, k.put, log)
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

// login returns what the JAAS file says.
func (k *Keeper) login(c reread.Contents) (*jaas.Login, error) {
	file := c[k.files.JAAS]
	if file.Err != nil {
		return nil, file.Err
	}
	login, err := jaas.Read(file.Text, k.files.Section)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.files.JAAS, err)
	}
	return login, nil
}

func (k *Keeper) read() reread.Contents {
	c := reread.Read(k.files.JAAS)
	if login, err := k.login(c); err == nil && login.Keytab != "" {
		maps.Copy(c, reread.Read(login.Keytab))
	}
	return c
}

func (k *Keeper) put(c reread.Contents) ([]any, error) {
	login, err := k.login(c)
	if err != nil {
		return nil, err
	}
	for _, what := range login.Ignored {
		k.log.Warn("a part of the file of users has no effect, as in ZooKeeper", "file", k.files.JAAS, "what", what)
	}
	kerberos := login.Principal != "" // as ZooKeeper chooses
	if kerberos && k.digest != nil || !kerberos && k.kerberos != nil {
		return nil, fmt.Errorf("%s: it has users with passwords in place of a principal of Kerberos, or the other way round, which needs a restart", k.files.JAAS)
	}
	if !kerberos {
		if err := k.setUsers(login.Users); err != nil {
			return nil, err
		}
		return []any{"users", len(login.Users)}, nil
	}
	if err := k.setKeys(login, c[login.Keytab]); err != nil {
		return nil, fmt.Errorf("%s: %w", k.files.JAAS, err)
	}
	return []any{"principal", login.Principal, "versions", k.kerberos.Versions()}, nil
}

func (k *Keeper) setUsers(users map[string]string) error {
	for _, user := range slices.Sorted(maps.Keys(users)) {
		if user == "" || !utf8.ValidString(user) || !znode.ValidSASL(user) {
			return fmt.Errorf("%s: %q is not a name with which ZooKeeper lets a user authenticate", k.files.JAAS, user)
		}
	}
	for _, user := range k.files.SuperUsers {
		if _, ok := users[user]; !ok {
			return fmt.Errorf("%s: %w, who is to be a super user", k.files.JAAS, &SuperUserError{user})
		}
	}
	if k.digest == nil {
		k.digest = sasl.NewDigestMD5(users)
	} else {
		k.digest.SetUsers(users)
	}
	return nil
}

func (k *Keeper) setKeys(login *jaas.Login, keytab reread.Content) (err error) {
	if keytab.Err != nil {
		return keytab.Err
	}
	config := gssapi.Config{Keytab: login.Keytab, Principal: login.Principal, RemoveHost: k.files.RemoveHost, RemoveRealm: k.files.RemoveRealm}
	if k.kerberos != nil {
		return k.kerberos.Set(config, keytab.Text)
	}
	k.kerberos, err = gssapi.New(config, keytab.Text)
	return err
}
