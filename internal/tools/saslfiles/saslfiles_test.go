package saslfiles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jcmturner/gokrb5/v8/keytab"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/gssapi/gssapitest"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/internal/tools/reread"
)

var check = testkit.Check

// fileOf writes a file into a new directory.
func fileOf(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	check(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// authenticates reports whether a user can authenticate with DIGEST-MD5.
func authenticates(t *testing.T, k *Keeper, user, password string) bool {
	t.Helper()
	e := k.Begin()
	challenge := testkit.Must(e.Step(nil))(t)
	response, _ := rawtest.DigestMD5{User: user, Password: password}.Response(string(challenge))
	_, err := e.Step([]byte(response))
	name, ok := e.User()
	if ok != (err == nil) || ok && name != user {
		t.Errorf("user %q, %v, %v", name, ok, err)
	}
	return ok
}

// watched runs f in virtual time, while the files are watched.
func watched(t *testing.T, files Files, log *testkit.Log, f func(t *testing.T, k *Keeper)) {
	synctest.Test(t, func(t *testing.T) {
		k := testkit.Must(Open(files, log.Logger(slog.LevelInfo)))(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { k.Watch(ctx) })
		f(t, k)
		cancel()
		wg.Wait()
	})
}

// TestUsers replaces users while somebody is authenticated and another is about to be, and breaks the file.
func TestUsers(t *testing.T) {
	file := fileOf(t, "jaas.conf", rawtest.JAAS(map[string]string{"bob": "SECRET1", "ann": "SECRET2"}))
	var log testkit.Log
	watched(t, Files{JAAS: file, Section: "Server", SuperUsers: []string{"bob"}}, &log, func(t *testing.T, k *Keeper) {
		write := func(text string) {
			check(t, os.WriteFile(file, []byte(text), 0o600))
			time.Sleep(reread.Every + reread.Settle + time.Millisecond)
		}
		if k.Kerberos() || !authenticates(t, k, "bob", "SECRET1") || authenticates(t, k, "bob", "SECRET2") {
			t.Error("the users are not those of the file")
		}
		write(rawtest.JAAS(map[string]string{"bob": "SECRET3", "eve": "SECRET4"}))
		for user, ok := range map[string]bool{"bob SECRET1": false, "bob SECRET3": true, "ann SECRET2": false, "eve SECRET4": true} {
			name, password, _ := strings.Cut(user, " ")
			if authenticates(t, k, name, password) != ok {
				t.Errorf("%s: %v", user, !ok)
			}
		}
		failures := int64(0)
		for text, says := range map[string]string{
			"Server {\n x required user_bob=\"SECRET5;\n};":                      file + ": line 2: ",
			rawtest.JAAS(map[string]string{"eve": "SECRET5"}):                    file + ": there is no user \\\"bob\\\", who is to be a super user",
			rawtest.JAAS(map[string]string{"bob": "SECRET5", "a@b@c": "SECRET"}): file + ": \\\"a@b@c\\\" is not a name",
			"": file + ": there is no section",
			"Server { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab=\"/none\" principal=\"a/b@C\"; };": file + ": it has users with passwords in place of",
		} {
			write(text)
			failures++
			if s := k.State(); s.Failures != failures || !s.Refused || s.Reloads != 1 {
				t.Errorf("%q: %+v", text, s)
			}
			if !authenticates(t, k, "bob", "SECRET3") || authenticates(t, k, "bob", "SECRET5") {
				t.Errorf("%q: the former users do not count", text)
			}
			time.Sleep(time.Hour)
			if lines := log.Matching("ERROR", says); len(lines) != 1 {
				t.Errorf("the log does not say once %s: %s", says, &log)
			}
		}
		check(t, os.Remove(file))
		k.Reload()
		if lines := log.Matching("ERROR", file, "no such file"); len(lines) != 1 || !authenticates(t, k, "bob", "SECRET3") {
			t.Errorf("without the file: %s", &log)
		}
		write(rawtest.JAAS(map[string]string{"bob": "SECRET6"}))
		if s := k.State(); s.Refused || s.Reloads != 2 || !authenticates(t, k, "bob", "SECRET6") {
			t.Errorf("%+v", s)
		}
	})
	if lines := log.Matching("INFO", `"the files for SASL have been read again" for=sasl users=2`); len(lines) != 1 || strings.Contains(log.String(), "SECRET") {
		t.Errorf("the log: %s", &log)
	}
}

// TestKeytab replaces a keytab as a new key comes and an old one goes, and breaks it.
func TestKeytab(t *testing.T) {
	const server, realm = "zookeeper/h", "R"
	password := func(n uint8) string { return fmt.Sprint("SECRET", n) }
	keys := func(versions ...uint8) *keytab.Keytab {
		k := keytab.New()
		for _, n := range versions {
			check(t, k.AddEntry(server, realm, password(n), time.Now(), n, 18))
		}
		return k
	}
	text := func(k *keytab.Keytab) []byte { return testkit.Must(k.Marshal())(t) }
	file := fileOf(t, "keytab", string(text(keys(1))))
	jaas := func(keytab, principal string) string {
		return fmt.Sprintf("Server { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab=%q principal=%q; };", keytab, principal)
	}
	config := fileOf(t, "jaas.conf", jaas(file, server+"@"+realm))
	var log testkit.Log
	watched(t, Files{JAAS: config, Section: "Server", RemoveRealm: true}, &log, func(t *testing.T, k *Keeper) {
		write := func(to string, text []byte) {
			check(t, os.WriteFile(to, text, 0o600))
			time.Sleep(reread.Every + reread.Settle + time.Millisecond)
		}
		// accepted returns which versions of keys tickets may be for.
		accepted := func() (versions string) {
			for n := range uint8(4) {
				c := gssapitest.New("bob", server, realm, keys(n))
				c.Said = int(n)
				token := testkit.Must(c.First())(t)
				e := k.Begin()
				offer, err := e.Step(token)
				if err != nil {
					continue
				}
				choice := testkit.Must(c.Choice(offer, gssapitest.NoLayer, 0))(t)
				testkit.Must(e.Step(choice))(t)
				if name, ok := e.User(); name != "bob" || !ok {
					t.Errorf("user %q, %v", name, ok)
				}
				versions += fmt.Sprint(n)
			}
			return versions
		}
		if is := accepted(); is != "1" || !k.Kerberos() {
			t.Errorf("at first, keys %s count", is)
		}
		write(file, text(keys(1, 2)))
		if is := accepted(); is != "12" {
			t.Errorf("with a new one, keys %s count", is)
		}
		write(file, text(keys(2)))
		if is := accepted(); is != "2" {
			t.Errorf("without the old one, keys %s count", is)
		}
		failures := int64(0)
		for _, bad := range []struct {
			file, says string
			text       []byte
		}{
			{file, config + ": " + file + ": it is not a keytab, or is damaged", text(keys(1, 2, 3))[:80]},
			{file, config + ": " + file + ": it is not a keytab, or is damaged", nil},
			{file, config + ": " + file + ": it has no key of zookeeper/h@R for AES", text(keytabOf(t, "zookeeper/other"))},
			{config, config + ": line 1: section ", []byte(strings.Replace(jaas(file, server+"@"+realm), "storeKey=true", "", 1))},
			{config, config + ": it has users with passwords in place of", []byte(rawtest.JAAS(map[string]string{"bob": "SECRET"}))},
			{config, "no such file", []byte(jaas(file+".none", server+"@"+realm))},
		} {
			good := testkit.Must(os.ReadFile(bad.file))(t)
			before := len(log.Matching("ERROR", bad.says))
			write(bad.file, bad.text)
			failures++
			if s := k.State(); s.Failures != failures || !s.Refused {
				t.Errorf("%s: %+v", bad.says, s)
			}
			if lines := log.Matching("ERROR", bad.says); len(lines) != before+1 {
				t.Errorf("the log does not say %s: %s", bad.says, &log)
			}
			if is := accepted(); is != "2" {
				t.Errorf("%s: keys %s count", bad.says, is)
			}
			write(bad.file, good)
			if s := k.State(); s.Refused {
				t.Errorf("%s, and that is mended: %+v", bad.says, s)
			}
		}
		other := fileOf(t, "other", string(text(keys(3))))
		write(config, []byte(jaas(other, server+"@"+realm)))
		if is := accepted(); is != "3" {
			t.Errorf("with another file, keys %s count", is)
		}
		write(other, text(keys(1, 3)))
		if is := accepted(); is != "13" {
			t.Errorf("when that changes, keys %s count", is)
		}
	})
	if lines := log.Matching("INFO", `"the files for SASL have been read again" for=sasl principal=zookeeper/h@R versions="[2 1]"`); len(lines) != 1 || strings.Contains(log.String(), "SECRET") {
		t.Errorf("the log: %s", &log)
	}
}

func keytabOf(t *testing.T, principal string) *keytab.Keytab {
	t.Helper()
	k := keytab.New()
	check(t, k.AddEntry(principal, "R", "x", time.Now(), 1, 18))
	return k
}

// TestOpen: at the start, an error names the file, or the super user who is no user.
func TestOpen(t *testing.T) {
	users := fileOf(t, "jaas.conf", rawtest.JAAS(map[string]string{"bob": "SECRET"}))
	none := filepath.Join(t.TempDir(), "none")
	for _, x := range []struct {
		files Files
		says  string
	}{
		{Files{JAAS: none, Section: "Server"}, none},
		{Files{JAAS: users, Section: "Other"}, users + `: there is no section "Other"`},
		{Files{JAAS: users, Section: "Server", SuperUsers: []string{"bob", "eve"}}, `no user "eve"`},
	} {
		k, err := Open(x.files, testkit.Quiet)
		if k != nil || err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%+v: %v", x.files, err)
		}
		if nobody := (*SuperUserError)(nil); errors.As(err, &nobody) != (len(x.files.SuperUsers) > 0) {
			t.Errorf("%+v: %v", x.files, err)
		}
	}
}
