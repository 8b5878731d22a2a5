package jaas

import (
	"maps"
	"strings"
	"testing"
)

// TestUsers: what Java reads, with comments, several modules and other sections.
func TestUsers(t *testing.T) {
	const file = `// users of the server
/ a comment too
/* and
   others */
Client {
  com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true
    keyTab="/etc/\"x\".keytab";
};
"Server" {
  org.apache.zookeeper.server.auth.DigestLoginModule REQUIRED
  user_super="a\tb\\c\"d" user_bob = plain // the last option
  "user_a@B/c d"="é密\101\1234\477"
  username="peer" password="secret";
  org.apache.zookeeper.server.auth.DigestLoginModule optional
  user_$x-1.*=_y
  user_="";
};
Empty {};
QuorumServer { org.apache.zookeeper.server.auth.DigestLoginModule required user_q="q"; };
`
	got, err := Read([]byte(file), "Server")
	want := map[string]string{"super": "a\tb\\c\"d", "bob": "plain", "a@B/c d": "é密AS4'7", "$x-1.*": "_y", "": ""}
	if err != nil || !maps.Equal(got.Users, want) || got.Principal != "" {
		t.Errorf("%q, %v\nwant %q", got, err, want)
	}
	if got, err := Read([]byte(file), "QuorumServer"); err != nil || !maps.Equal(got.Users, map[string]string{"q": "q"}) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestKerberos: a section with the server's principal has no users.
func TestKerberos(t *testing.T) {
	const file = `Server {
  com.sun.security.auth.module.Krb5LoginModule required debug=true isInitiator=false
  useKeyTab=true keyTab="/etc/x.keytab" storeKey=true useTicketCache=false principal="zookeeper/h.example.com@EXAMPLE.COM";
};
Client { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true whatever=x; };`
	const other = "Server { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=TRUE storeKey=true keyTab=\"file:x\" principal=\"a/b@C\"; };"
	if got, err := Read([]byte(other), "Server"); err != nil || got.Keytab != "x" {
		t.Errorf("%q, %v", got, err)
	}
	got, err := Read([]byte(file), "Server")
	if err != nil || got.Principal != "zookeeper/h.example.com@EXAMPLE.COM" || got.Keytab != "/etc/x.keytab" || got.Users != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestIgnored: what Java ignores is ignored, and told with its line, but without a password.
func TestIgnored(t *testing.T) {
	const module = "org.apache.zookeeper.server.auth.DigestLoginModule required\n "
	got, err := Read([]byte("// \xe4\nServer { // \xfc\n "+module+"user_a=\"SECRET\"\n user_a=\"y\" usr_b=SECRET\n user_c=\"SECRET\xe4\" user_d\xe4=\"SECRET\" user_e=e\n"+
		" user_f=f\n user_f=\"\xe4\"; "+module+" user_e=\"\u00e4\"; };"), "Server")
	says := []string{`line 5: user "a" is there twice`, "line 5: an option that is not user_NAME", "line 6: a user whose", "line 6: a user whose", "line 8: a user whose", `line 9: user "e"`}
	if err != nil || !maps.Equal(got.Users, map[string]string{"a": "y", "e": "\u00e4"}) || len(got.Ignored) != len(says) {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, text := range got.Ignored {
		if !strings.HasPrefix(text, says[i]) || strings.Contains(text, "SECRET") {
			t.Errorf("%q, not %q", text, says[i])
		}
	}
	got, err = Read([]byte("Server { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab=a\nkeyTab=x principal=\"a/b@C\" keytab=y; };"), "Server")
	if err != nil || got.Keytab != "x" || len(got.Ignored) != 1 || got.Ignored[0] != `line 2: option "keytab" of Kerberos has no effect` {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestErrors: an error names the line where somebody would look, and shows no password.
func TestErrors(t *testing.T) {
	const module = "org.apache.zookeeper.server.auth.DigestLoginModule"
	const krb5 = "com.sun.security.auth.module.Krb5LoginModule required"
	for file, want := range map[string]string{
		"":                        "there is no section \"Server\"",
		"# x":                     "line 1: the name of a section is missing",
		"Client { x required; };": "there is no section \"Server\"",
		"Server {\n};":            `line 1: section "Server" has no users: user_NAME="PASSWORD"`,
		"// x\nServer {\n " + module + " required\n username=\"SECRET\";\n};":                   `line 2: section "Server" has no users`,
		"Server {\n " + module + " required\n user_a=\"SECRET\"\n};":                            "line 3: the name of an option, or ; is missing",
		"Server {\n " + module + " required\n user_a=\"SECRET\";\n}":                            "line 4: ; is missing after the } of a section",
		"Server {\n " + module + " required\n user_a=\"SECRET\";\n":                             "line 3: the class of a login module, or } is missing",
		"Server\n " + module + " required\n user_a=\"SECRET\";\n":                               "line 1: { is missing after the name of a section",
		"Server {\n " + module + "\n user_a=\"SECRET\";\n};":                                    "line 3: after the class of a login module there must be one of required, requisite, sufficient, optional",
		"Server {\n " + module + " required\n user_a \"SECRET\";\n};":                           "line 3: = is missing after the name of option \"user_a\"",
		"Server {\n " + module + " required\n user_a=\"SECRET;\n};":                             "line 3: a text in double quotes does not end on its line",
		"Server {\n " + module + " required\n user_a=\"SECRET\\\n\";\n};":                       "line 3: a text in double quotes does not end on its line",
		"Server {\n " + module + " required\n user_a=;\n};":                                     "line 3: the value of option \"user_a\" is missing",
		"Server {\n " + module + " required\n user_a=1SECRET;\n};":                              "line 3: a name or value that begins with a digit",
		"Server {\n " + module + " required\n user_a@b=\"SECRET\";\n};":                         "line 3: = is missing after the name of option \"user_a\"",
		"Server {\n " + module + " required\n user_a=\"${SECRET}\";\n};":                        "line 3: option \"user_a\" has a property",
		"Server {\n x.Krb5LoginModule required\n keyTab=\"x\";\n};":                             "line 2: the only login modules that are supported are ",
		"Server {\n " + krb5 + " keyTab=\"x\"\n principal=\"a/b@C\";\n};":                       "line 1: section \"Server\": a server needs useKeyTab=true",
		"Server {\n " + krb5 + " useKeyTab=true\n storeKey=true principal=\"a/b@C\";\n};":       "line 1: section \"Server\": option \"keyTab\" is missing",
		"Server {\n " + krb5 + ";\n " + krb5 + ";\n};":                                          "line 3: login module \"com.sun.security.auth.module.Krb5LoginModule\" is there twice",
		"Server {\n " + krb5 + ";\n " + module + " required user_a=a;\n};":                      "line 1: section \"Server\" has a login module of each kind",
		"Server {\n " + module + " required user_a=a;\n};\nServer {};":                          "line 4: section \"Server\" is there twice",
		"Server {\n " + module + " required user_a=a;\n};\n/* x":                                "line 4: the comment has no end",
		"Server {\n " + module + " required user_a=a;\n};\n}":                                   "line 3: the name of a section is missing",
		"Server {\n " + module + " required user_a=a;\n};\nClient { x required a=\"SECRET\" };": "line 4: the name of an option, or ; is missing",
		// Passwords that should have been quoted, of which a part looks like something else.
		"Server {\n " + module + " required\n user_a=my SECRET pass;\n};":     "line 3: = is missing after the name of an option",
		"Server {\n " + module + " required\n user_a=\"my\"SECRET\"\";\n};":   "line 3: = is missing after the name of an option",
		"Server {\n " + module + " required\n user_a=my SECRET=;\n};":         "line 3: the value of an option is missing",
		"Server {\n " + module + " required\n user_a=my;SECRET required;\n};": "line 3: the only login modules that are supported are " + module,
	} {
		users, err := Read([]byte(file), "Server")
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "SECRET") || users != nil {
			t.Errorf("%q: %v, %v\nwant %s", file, users, err, want)
		}
	}
}

// FuzzUsers: any file has users, or a principal, or one error in one line.
func FuzzUsers(f *testing.F) {
	f.Add([]byte("Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_bob=\"a\\tb\\101\"; }; /* x */"))
	f.Add([]byte("\"Server\" { x required user_a=b // c\n; };"))
	f.Fuzz(func(t *testing.T, file []byte) {
		users, err := Read(file, "Server")
		if (err == nil) != (users != nil && len(users.Users) > 0 != (users.Principal != "")) || err != nil && strings.ContainsAny(err.Error(), "\r\n") {
			t.Errorf("%q, %v", users, err)
		}
	})
}
