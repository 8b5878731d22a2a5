package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/lockkeeper/lockkeeper"
)

// tlsFlags are the flags about TLS, by their names.
type tlsFlags struct{ cert, key, ca, clientAuth string }

func (t *tlsFlags) define(f *flag.FlagSet, cfg *lockkeeper.Config) {
	f.StringVar(&cfg.SecureAddr, "tls-listen", "", "`address` for clients that speak TLS; port 0 picks one")
	f.StringVar(&t.cert, "tls-cert", "", "PEM `file` with the certificate to show them, and those between it and the authority")
	f.StringVar(&t.key, "tls-key", "", "PEM `file` with its key; if not given, the certificate's")
	f.StringVar(&t.ca, "tls-ca", "", "PEM `file` with the authorities that vouch for clients")
	f.StringVar(&t.clientAuth, "tls-client-auth", "need", "whether to `ask` clients for a certificate: need, want or none")
	f.StringVar(&cfg.X509SuperUser, "x509-super-user", "", "the super user, as the `subject` of a client certificate: CN=admin,O=Example")
}

// load reads the files into cfg. Without --tls-listen there is nothing to read,
// and nothing may be given.
func (t *tlsFlags) load(cfg *lockkeeper.Config) error {
	if cfg.SecureAddr == "" {
		if t.cert != "" || t.key != "" || t.ca != "" || cfg.X509SuperUser != "" {
			return usageError{errors.New("-tls-cert, -tls-key, -tls-ca or -x509-super-user without -tls-listen")}
		}
		return nil
	}
	auth, ok := map[string]tls.ClientAuthType{
		"need": tls.RequireAndVerifyClientCert, "want": tls.VerifyClientCertIfGiven, "none": tls.NoClientCert,
	}[strings.ToLower(t.clientAuth)]
	switch {
	case !ok:
		return usageError{fmt.Errorf("invalid value %q for flag -tls-client-auth: not need, want or none", t.clientAuth)}
	case t.cert == "":
		return usageError{errors.New("-tls-listen without -tls-cert")}
	case auth != tls.NoClientCert && t.ca == "":
		return usageError{fmt.Errorf("-tls-client-auth %s without -tls-ca, which says who vouches for clients", strings.ToLower(t.clientAuth))}
	}
	key := t.key
	if key == "" {
		key = t.cert
	}
	pair, err := tls.LoadX509KeyPair(t.cert, key)
	if err != nil {
		if !errors.As(err, new(*os.PathError)) { // which names its file
			err = fmt.Errorf("%s, %s: %w", t.cert, key, err)
		}
		return err
	}
	cfg.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: auth}
	if t.ca == "" {
		return nil
	}
	pem, err := os.ReadFile(t.ca)
	if err != nil {
		return err
	}
	cfg.TLS.ClientCAs = x509.NewCertPool()
	if !cfg.TLS.ClientCAs.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s: no certificate in PEM form", t.ca)
	}
	return nil
}
