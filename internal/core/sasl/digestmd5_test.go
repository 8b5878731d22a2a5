package sasl

import (
	"errors"
	"maps"
	"strings"
	"testing"
)

// TestRFC: the example of RFC 2831, section 4.
func TestRFC(t *testing.T) {
	m := newDigestMD5("elwood.innosoft.com", "imap/elwood.innosoft.com", func() string { return "OA6MG9tEQGm2hh" }, map[string]string{"chris": "secret"})
	e := m.Begin()
	challenge, err := e.Step(nil)
	if want := `realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",charset=utf-8,algorithm=md5-sess`; string(challenge) != want || err != nil {
		t.Fatalf("%s, %v\nwant %s", challenge, err, want)
	}
	if user, ok := e.User(); ok {
		t.Errorf("user %q has authenticated with nothing", user)
	}
	response := []byte(`charset=utf-8,username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",nc=00000001,cnonce="OA6MHXh6VqTrRk",` +
		`digest-uri="imap/elwood.innosoft.com",response=d388dad90d4bbd760a152321f2143af7,qop=auth`)
	proof, err := e.Step(response)
	if want := "rspauth=ea40f60335c427b5527b84dbabcdfffd"; string(proof) != want || err != nil {
		t.Errorf("%s, %v, want %s", proof, err, want)
	}
	if user, ok := e.User(); user != "chris" || !ok {
		t.Errorf("user %q, %v", user, ok)
	}
	if token, err := e.Step(response); token != nil || err == nil {
		t.Errorf("once more: %s, %v", token, err)
	}
}

// TestUnknownUser: who knows how the mechanism treats a user whom it does not know is not that user.
func TestUnknownUser(t *testing.T) {
	m := newDigestMD5("r", "u", func() string { return "n" }, map[string]string{"bob": "x"})
	r := response{"username": []byte("eve"), "realm": []byte("r"), "nonce": []byte("n"), "cnonce": []byte("c"), "digest-uri": []byte("u")}
	for name, s := range map[string]secret{"no secret": {}, "bob's": (*m.users.Load())["bob"]} {
		r["response"] = s.value(r, "n", "AUTHENTICATE")
		if proof, err := m.verify(r, "n"); err == nil {
			t.Errorf("with %s: %s", name, proof)
		}
	}
	r["username"] = []byte("bob")
	r["response"] = (*m.users.Load())["bob"].value(r, "n", "AUTHENTICATE")
	if _, err := m.verify(r, "n"); err != nil {
		t.Error(err)
	}
}

// TestSetUsers: other users count at once, also for who has got a challenge before; who has authenticated stays so.
func TestSetUsers(t *testing.T) {
	m := newDigestMD5("r", "u", func() string { return "n" }, map[string]string{"bob": "x", "ann": "y"})
	begin := func() Exchange {
		e := m.Begin()
		if _, err := e.Step(nil); err != nil {
			t.Fatal(err)
		}
		return e
	}
	respond := func(e Exchange, user, password string) bool {
		own := newDigestMD5("r", "u", nil, map[string]string{user: password})
		r := response{"username": []byte(user), "realm": []byte("r"), "nonce": []byte("n"), "cnonce": []byte("c"), "digest-uri": []byte("u")}
		text := `username="` + user + `",realm="r",nonce="n",cnonce="c",digest-uri="u",response=` + string((*own.users.Load())[user].value(r, "n", "AUTHENTICATE"))
		_, err := e.Step([]byte(text))
		name, ok := e.User()
		if ok != (err == nil) || ok && name != user {
			t.Errorf("user %q, %v, %v", name, ok, err)
		}
		return ok
	}
	first, second, third := begin(), begin(), begin()
	if !respond(first, "bob", "x") {
		t.Error("bob cannot authenticate")
	}
	m.SetUsers(map[string]string{"bob": "new", "eve": "z"})
	if name, ok := first.User(); name != "bob" || !ok {
		t.Errorf("who has authenticated is user %q, %v", name, ok)
	}
	for _, x := range []struct {
		e              Exchange
		user, password string
		ok             bool
	}{{second, "bob", "x", false}, {third, "bob", "new", true}, {begin(), "bob", "x", false}, {begin(), "ann", "y", false}, {begin(), "eve", "z", true}} {
		if ok := respond(x.e, x.user, x.password); ok != x.ok {
			t.Errorf("%s with %s: %v", x.user, x.password, ok)
		}
	}
}

// TestNonces: every exchange has its own nonce, so a response counts only for the challenge that
// it answers.
func TestNonces(t *testing.T) {
	m := NewDigestMD5(map[string]string{"bob": "x"})
	seen := map[string]bool{}
	for range 100 {
		challenge, err := m.Begin().Step([]byte("ignored"))
		if err != nil || seen[string(challenge)] || len(challenge) != 101 {
			t.Fatalf("%s, %v", challenge, err)
		}
		seen[string(challenge)] = true
	}
}

// FuzzResponse: no response authenticates anybody without the password, whatever it contains, and
// it is parsed as it is written again.
func FuzzResponse(f *testing.F) {
	for _, text := range []string{
		`charset=utf-8,username="bob",realm="r",nonce="n",nc=00000001,cnonce="c",digest-uri="u",maxbuf=65536,response=00000000000000000000000000000000,qop=auth`,
		` , USERNAME = "b\"o\\b" ,,foo, realm`, `username="bob"x`, `username="bob\`, `=`, `a=b c=d`, `nonce-count=+1,nonce-count=1`, "maxbuf=\"\"", `a b`,
	} {
		f.Add([]byte(text))
	}
	m := newDigestMD5("r", "u", func() string { return "n" }, map[string]string{"bob": "a password that a fuzzer does not find"})
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace
	f.Fuzz(func(t *testing.T, token []byte) {
		e := m.Begin()
		if _, err := e.Step(nil); err != nil {
			t.Fatal(err)
		}
		answer, err := e.Step(token)
		if user, ok := e.User(); ok || err == nil || answer != nil {
			t.Fatalf("%q is authenticated: %q, %v", user, answer, err)
		}
		r, err := parseResponse(token)
		if errors.Is(err, ErrUnanswered) {
			t.Errorf("%v", err)
		}
		var b strings.Builder
		for name, value := range r {
			b.WriteString(name + `="` + quote(string(value)) + `",`)
		}
		again, err := parseResponse([]byte(b.String()))
		same := func(a, b []byte) bool { return string(a) == string(b) }
		if err != nil || !maps.EqualFunc(again, r, same) {
			t.Errorf("%q is parsed as %q, and that as %q, %v", token, r, again, err)
		}
	})
}
