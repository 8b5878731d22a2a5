package rawtest

import (
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// DigestMD5 is a client of SASL's mechanism DIGEST-MD5 (RFC 2831). Empty fields except User,
// Password and Authzid have the values that ZooKeeper expects.
type DigestMD5 struct {
	User, Password           string
	Realm, URI, Cnonce, More string // More is put at the end of the response
	Authzid                  string // not sent if it is empty
}

var nonceOf = regexp.MustCompile(`nonce="([^"]*)"`)

// Response returns the response to a challenge, and what the server answers to prove that it
// knows the password.
func (d DigestMD5) Response(challenge string) (response, proof string) {
	for field, value := range map[*string]string{&d.Realm: "zk-sasl-md5", &d.URI: "zookeeper/zk-sasl-md5", &d.Cnonce: "b2xkIGtleQ"} {
		if *field == "" {
			*field = value
		}
	}
	nonce := ""
	if m := nonceOf.FindStringSubmatch(challenge); m != nil {
		nonce = m[1]
	}
	secret := md5.Sum([]byte(latin1(d.User) + ":" + latin1(d.Realm) + ":" + latin1(d.Password)))
	a1 := string(secret[:]) + ":" + nonce + ":" + d.Cnonce
	more := d.More
	if d.Authzid != "" {
		a1 += ":" + d.Authzid
		more += `,authzid="` + d.Authzid + `"`
	}
	value := func(method string) string {
		return hexMD5(hexMD5(a1) + ":" + nonce + ":00000001:" + d.Cnonce + ":auth:" + hexMD5(method+":"+d.URI))
	}
	return fmt.Sprintf(`charset=utf-8,username="%s",realm="%s",nonce="%s",nc=00000001,cnonce="%s",digest-uri="%s",maxbuf=65536,response=%s,qop=auth`,
		d.User, d.Realm, nonce, d.Cnonce, d.URI, value("AUTHENTICATE")) + more, "rspauth=" + value("")
}

func hexMD5(text string) string {
	sum := md5.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// latin1 returns a text in ISO 8859-1, or unchanged if that cannot be.
func latin1(text string) string {
	var b []byte
	for _, r := range text {
		if r > 0xff {
			return text
		}
		b = append(b, byte(r))
	}
	return string(b)
}

// CallSASL sends a token and returns the server's.
func CallSASL(c *rawclient.Client, token string) (string, error) {
	var reply proto.SASLReply
	_, err := c.Call(proto.OpSASL, &proto.SASLRequest{Token: []byte(token)}, &reply)
	return string(reply.Token), err
}

// Login authenticates a client, and the server to the client.
func (d DigestMD5) Login(c *rawclient.Client) error {
	challenge, err := CallSASL(c, "")
	if err != nil {
		return err
	}
	response, proof := d.Response(challenge)
	token, err := CallSASL(c, response)
	if err == nil && token != proof {
		err = fmt.Errorf("the server answers %q, not %q", token, proof)
	}
	return err
}

// SASLUsers are the users whom SASLCases need, with their passwords.
var SASLUsers = map[string]string{
	"bob": "bobpw", "super": "superpw", "admin": "adminpw", "a/b": "x", "a@B": "x", "jürgen": "pässwörd", "嬉": "密",
	`quo"te`: `a\"b'c`,
}

// JAAS returns the text of a JAAS file whose section Server has these users.
func JAAS(users map[string]string) string {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace
	var b strings.Builder
	b.WriteString("Server {\n\torg.apache.zookeeper.server.auth.DigestLoginModule required")
	for _, user := range slices.Sorted(maps.Keys(users)) {
		fmt.Fprintf(&b, "\n\t\"user_%s\"=\"%s\"", quote(user), quote(users[user]))
	}
	b.WriteString(";\n};\n")
	return b.String()
}

// SASLCase is a response to a challenge and what follows from it. ZooKeeper 3.9 on Java 17
// answers so, as TestSASLAgainstZooKeeper of interop checks.
type SASLCase struct {
	Name     string
	Response func(challenge string) string
	// Want is the user who is authenticated, or SASLRefused or SASLClosed.
	Want string
}

// What follows from a response that does not authenticate a user.
const (
	SASLRefused = "(refused)" // an answer with AuthFailed and a null token, then the end of the connection
	SASLClosed  = "(closed)"  // the end of the connection, without an answer
)

// SASLCases covers the responses that clients send, and what is wrong with others.
func SASLCases() []SASLCase {
	bob := DigestMD5{User: "bob", Password: "bobpw"}
	valid := func(challenge string) string { response, _ := bob.Response(challenge); return response }
	with := func(name string, change func(d *DigestMD5), want string) SASLCase {
		d := bob
		change(&d)
		return SASLCase{name, func(challenge string) string { response, _ := d.Response(challenge); return response }, want}
	}
	user := func(name, password string) SASLCase {
		return with("user "+name, func(d *DigestMD5) { d.User, d.Password = name, password }, name)
	}
	text := func(name, response, want string) SASLCase {
		return SASLCase{name, func(string) string { return response }, want}
	}
	replaced := func(from, to, want string) SASLCase {
		return SASLCase{fmt.Sprintf("%q for %q", to, from), func(challenge string) string {
			return strings.ReplaceAll(valid(challenge), from, to)
		}, want}
	}
	more := func(more, want string) SASLCase {
		return with("with "+more, func(d *DigestMD5) { d.More = more }, want)
	}
	without := func(directive, want string) SASLCase {
		cut := regexp.MustCompile(`(^|,)` + directive + `=[^,]*`)
		return SASLCase{"no " + directive, func(challenge string) string { return cut.ReplaceAllString(valid(challenge), "") }, want}
	}
	long := func(name string, length int, want string) SASLCase {
		return with(name, func(d *DigestMD5) {
			d.Cnonce = "c"
			response, _ := d.Response(`nonce="` + strings.Repeat("n", 40) + `"`)
			d.Cnonce = strings.Repeat("c", 1+length-len(response))
		}, want)
	}
	escaped := with("quotes in a name", func(d *DigestMD5) { d.User, d.Password = `quo"te`, `a\"b'c` }, `quo"te`)
	unescaped := escaped.Response
	escaped.Response = func(challenge string) string {
		return strings.Replace(unescaped(challenge), `quo"te`, `quo\"\te`, 1)
	}
	return []SASLCase{
		{"as clients send it", valid, "bob"},
		user("super", "superpw"), user("admin", "adminpw"), user("a/b", "x"), user("a@B", "x"),
		user("jürgen", "pässwörd"), user("嬉", "密"), escaped,
		with("a wrong password", func(d *DigestMD5) { d.Password = "x" }, SASLRefused),
		with("an unknown user", func(d *DigestMD5) { d.User = "bib" }, SASLRefused),
		with("a user without a name", func(d *DigestMD5) { d.User = "" }, SASLClosed),
		with("an unknown user that is no name", func(d *DigestMD5) { d.User = "a@b@c" }, SASLRefused),
		with("a user that is not in UTF-8", func(d *DigestMD5) { d.User = "bo\xff" }, SASLRefused),
		with("authzid", func(d *DigestMD5) { d.Authzid = "super" }, "bob"),
		with("another realm", func(d *DigestMD5) { d.Realm = "other" }, SASLRefused),
		with("another uri", func(d *DigestMD5) { d.URI = "zookeeper/other" }, SASLRefused),
		with("a uri in other letters", func(d *DigestMD5) { d.URI = "ZooKeeper/ZK-sasl-md5" }, "bob"),
		long("4096 bytes", 4096, "bob"), long("4097 bytes", 4097, SASLRefused),
		text("nothing", "", SASLRefused), text("garbage", "\xff\x00garbage", SASLRefused),
		text("no value", "username=", SASLRefused), text("no equals sign", "username bob", SASLRefused),
		text("no name", "=bob", SASLRefused), text("no closing quote", `username="bob`, SASLRefused),
		text("ends with a backslash", `username="bob\`, SASLRefused),
		text("a comma in a name", `user,name=x`, SASLRefused),
		text("something behind a quote", `username="bob"x`, SASLRefused),
		without("charset", "bob"), without("maxbuf", "bob"), without("nc", "bob"), without("qop", "bob"),
		without("username", SASLRefused), without("realm", SASLRefused), without("nonce", SASLRefused),
		without("cnonce", SASLRefused), without("digest-uri", SASLRefused), without("response", SASLRefused),
		replaced("utf-8", "UTF-8", SASLRefused), replaced("utf-8", `"utf-8"`, "bob"), replaced("charset=", "CharSet=", "bob"),
		replaced("65536", "x", SASLClosed), replaced("65536", `""`, SASLClosed), replaced("65536", "2147483648", SASLClosed),
		replaced("65536", "+1", "bob"), replaced("65536", "-2147483648", "bob"),
		replaced("nc=00000001", "nc=x", "bob"), replaced("qop=auth", "qop=auth-int", SASLRefused), replaced("qop=auth", "qop=", SASLRefused),
		replaced(",", " ,, \r\n\t,", "bob"), replaced("=", " = ", "bob"), replaced(",", " ", "bob"),
		more(`,foo="x\"y",bar`, "bob"), more(",nonce=x", SASLRefused), more(",auth-param=1,auth-param=2", SASLRefused), more(",foo=1,foo=2", "bob"),
		more(",nonce-count=1", "bob"), more(",nonce-count=+00000001", "bob"), more(",nonce-count=2", SASLRefused), more(",nonce-count=z", SASLClosed),
		more(`,cipher="rc4"`, "bob"), more(",realm", SASLRefused), more(`,foo="`, SASLRefused), more(",foo=", SASLRefused), more(`,foo=a"b"c`, "bob"), more(`,foo=,`, "bob"),
	}
}

// Run authenticates a client with the response and checks what follows. It returns the user whom
// the server has authenticated, SASLRefused or SASLClosed, or an error about an answer that does
// not fit.
func (x *SASLCase) Run(c *rawclient.Client) (string, error) {
	challenge, err := CallSASL(c, "")
	if err != nil {
		return "", err
	}
	f, err := c.Call(proto.OpSASL, &proto.SASLRequest{Token: []byte(x.Response(challenge))}, nil)
	var late net.Error
	switch code, ok := err.(proto.Code); {
	case errors.As(err, &late) && late.Timeout():
		return "", err
	case err != nil && !ok:
		return SASLClosed, nil
	case ok:
		if code != proto.AuthFailed || f.Zxid != 0 || string(f.Body) != "\xff\xff\xff\xff" {
			return "", fmt.Errorf("refused with %+v", f)
		}
		if _, err := c.Read(); err == nil {
			return "", errors.New("the connection stays open")
		}
		return SASLRefused, nil
	}
	var who proto.WhoAmIReply
	if _, err := c.Call(proto.OpWhoAmI, nil, &who); err != nil {
		return "", err
	}
	for _, id := range who.IDs {
		if id.Scheme == proto.SchemeSASL {
			return id.ID, nil
		}
	}
	return "", fmt.Errorf("identities %v", who.IDs)
}
