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
	pair, err := loadPair(t.cert, t.key)
	if err != nil {
		return err
	}
	cfg.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: auth}
	if t.ca != "" {
		cfg.TLS.ClientCAs, err = loadAuthorities(t.ca)
	}
	return err
}

// loadPair reads a certificate and its key, by default from the same file.
func loadPair(cert, key string) (tls.Certificate, error) {
	if key == "" {
		key = cert
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil && !errors.As(err, new(*os.PathError)) { // which names its file
		err = fmt.Errorf("%s, %s: %w", cert, key, err)
	}
	return pair, err
}

func loadAuthorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate in PEM form", file)
	}
	return pool, nil
}

// peerTLSFlags defines the flags about TLS between members, who prove
// themselves to each other, and returns what makes a configuration of them: nil
// if none was given.
func peerTLSFlags(f *flag.FlagSet) func() (*tls.Config, error) {
	cert := f.String("peer-tls-cert", "", "PEM `file` with the certificate to prove oneself to members by")
	key := f.String("peer-tls-key", "", "PEM `file` with its key; if not given, the certificate's")
	ca := f.String("peer-tls-ca", "", "PEM `file` with the authorities that vouch for members")
	return func() (*tls.Config, error) {
		if *cert == "" && *key == "" && *ca == "" {
			return nil, nil
		}
		if *cert == "" || *ca == "" {
			return nil, usageError{errors.New("-peer-tls-cert and -peer-tls-ca go together")}
		}
		pair, err := loadPair(*cert, *key)
		if err != nil {
			return nil, err
		}
		pool, err := loadAuthorities(*ca)
		if err != nil {
			return nil, err
		}
		return &tls.Config{
			Certificates: []tls.Certificate{pair}, RootCAs: pool, ClientCAs: pool,
			ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
		}, nil
	}
}
