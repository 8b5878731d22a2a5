package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
)

// tlsFlags are the flags for TLS with clients that are not fields of the configuration.
type tlsFlags struct{ cert, key, ca, clientAuth string }

func (t *tlsFlags) define(f *pflag.FlagSet, cfg *lockkeeper.Config) {
	f.StringVar(&cfg.SecureAddr, "tls-listen", "", "`ADDRESS` for clients that speak TLS; port 0 picks a free one")
	f.StringVar(&t.cert, "tls-cert", "", "PEM `FILE` with the server's certificate and intermediate certificates")
	f.StringVar(&t.key, "tls-key", "", "PEM `FILE` with its key; by default that of --tls-cert")
	f.StringVar(&t.ca, "tls-ca", "", "PEM `FILE` with the authorities of client certificates")
	f.StringVar(&t.clientAuth, "tls-client-auth", "need", "`MODE` for client certificates: need, want or none")
	f.StringVar(&cfg.Auth.SuperX509, "x509-super-user", "", "the super user, as the `SUBJECT` of a client certificate, such as CN=admin,O=Example")
}

// load reads the files into cfg.
func (t *tlsFlags) load(flags *pflag.FlagSet, cfg *lockkeeper.Config) error {
	if cfg.SecureAddr == "" && t.cert+t.key+t.ca != "" {
		return badFlag(flags, "tls-listen", "--tls-cert, --tls-key and --tls-ca need it")
	}
	auth, ok := map[string]tls.ClientAuthType{
		"need": tls.RequireAndVerifyClientCert, "want": tls.VerifyClientCertIfGiven, "none": tls.NoClientCert,
	}[strings.ToLower(t.clientAuth)]
	switch {
	case !ok:
		return badFlag(flags, "tls-client-auth", "%q is not need, want or none", t.clientAuth)
	case t.cert == "": // no TLS, or Config reports the missing certificate
		return nil
	case auth != tls.NoClientCert && t.ca == "":
		return badFlag(flags, "tls-ca", "it must say whose client certificates to accept, with --tls-client-auth %s", strings.ToLower(t.clientAuth))
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
	if err != nil && !errors.As(err, new(*os.PathError)) { // a PathError names its file
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

// peerTLSFlags are the flags for TLS between members, which authenticate each other.
type peerTLSFlags struct{ cert, key, ca string }

func (t *peerTLSFlags) define(f *pflag.FlagSet) {
	f.StringVar(&t.cert, "peer-tls-cert", "", "PEM `FILE` with the certificate to present to members; with it, all connections between members use TLS")
	f.StringVar(&t.key, "peer-tls-key", "", "PEM `FILE` with its key; by default that of --peer-tls-cert")
	f.StringVar(&t.ca, "peer-tls-ca", "", "PEM `FILE` with the authorities of members' certificates")
}

// load returns nil if no flag is given.
func (t *peerTLSFlags) load(flags *pflag.FlagSet) (*tls.Config, error) {
	switch {
	case t.cert+t.key+t.ca == "":
		return nil, nil
	case t.cert == "":
		return nil, badFlag(flags, "peer-tls-cert", "--peer-tls-key and --peer-tls-ca need it")
	case t.ca == "":
		return nil, badFlag(flags, "peer-tls-ca", "it must say whose certificates to accept")
	}
	pair, err := loadPair(t.cert, t.key)
	if err != nil {
		return nil, err
	}
	pool, err := loadAuthorities(t.ca)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	}, nil
}
