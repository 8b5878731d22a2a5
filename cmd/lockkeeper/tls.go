package main

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/tlsfiles"
)

// tlsFlags are the flags for TLS with clients that are not fields of the configuration.
type tlsFlags struct {
	cert, key, ca, clientAuth string
	password, caPassword      secret
	addresses                 bool
	tlsLimits
}

// tlsLimits are flags that clients and members have, which make TLS accept less.
type tlsLimits struct {
	crl, protocols, ciphers string
}

// define defines the flags, whose names begin with prefix.
func (l *tlsLimits) define(f *pflag.FlagSet, prefix, whose string) {
	f.StringVar(&l.crl, prefix+"crl", "", "`FILE` with lists of revoked certificates (CRLs) of "+whose+", in PEM or DER form. Then each certificate needs a list of its issuer that has not ended")
	f.StringVar(&l.protocols, prefix+"protocols", "", "versions of TLS, a comma-separated `LIST` of TLSv1.2 and TLSv1.3, or the older TLSv1 and TLSv1.1; by default the first two")
	f.StringVar(&l.ciphers, prefix+"ciphers", "", "cipher suites, a comma-separated `LIST`. TLS 1.3 is only used with one of its own in the list, and then with all that Go has")
}

// settings adds the limits to s.
func (l *tlsLimits) settings(flags *pflag.FlagSet, prefix string, s *tlsfiles.Settings) error {
	protocols, err := listFlag(flags, prefix+"protocols", l.protocols)
	if err != nil {
		return err
	}
	if err := s.SetProtocols(protocols); err != nil {
		return badFlag(flags, prefix+"protocols", "%w", err)
	}
	ciphers, err := listFlag(flags, prefix+"ciphers", l.ciphers)
	if err != nil {
		return err
	}
	if err := s.SetCipherSuites(ciphers); err != nil {
		return badFlag(flags, prefix+"ciphers", "%w", err)
	}
	return nil
}

// secret is the value of a flag that names a file with a password. A zoo.cfg may have the
// password itself, which is never shown.
type secret tlsfiles.Secret

func (s *secret) String() string { return s.File }
func (s *secret) Type() string   { return "string" }

func (s *secret) Set(file string) error {
	*s = secret{File: file}
	return nil
}

// What help says about flags that clients and members have.
const (
	storeUsage      = " Instead of a PEM file it may be a PKCS #12 or JKS store"
	passwordUsage   = "`FILE` with the password of the key, if it is encrypted, or of the store"
	caPasswordUsage = "`FILE` with the password of the store with the authorities"
)

func (t *tlsFlags) define(f *pflag.FlagSet, cfg *lockkeeper.Config) {
	f.StringVar(&cfg.SecureAddr, "tls-listen", "", "`ADDRESS` for clients that speak TLS; port 0 picks a free one")
	f.StringVar(&t.cert, "tls-cert", "", "PEM `FILE` with the server's certificate and intermediate certificates."+storeUsage+" with its key")
	f.StringVar(&t.key, "tls-key", "", "PEM `FILE` with its key; by default that of --tls-cert")
	f.Var(&t.password, "tls-password-file", passwordUsage)
	f.StringVar(&t.ca, "tls-ca", "", "PEM `FILE` with the authorities of client certificates."+storeUsage)
	f.Var(&t.caPassword, "tls-ca-password-file", caPasswordUsage)
	f.BoolVar(&cfg.TLSOnClientAddr, "tls-on-listen", false, "let clients use TLS at --listen, too, beside those that do not; ZooKeeper's client.portUnification")
	t.tlsLimits.define(f, "tls-", "clients")
	f.BoolVar(&t.addresses, "tls-client-addresses", false, "refuse a client whose certificate is not for its IP address")
	f.StringVar(&t.clientAuth, "tls-client-auth", "need", "`MODE` for client certificates: need, want or none")
	f.StringVar(&cfg.Auth.SuperX509, "x509-super-user", "", "the super user, as the `SUBJECT` of a client certificate, such as CN=admin,O=Example")
}

// load reads the files into cfg, and returns what keeps them up to date; nil without TLS.
func (t *tlsFlags) load(flags *pflag.FlagSet, cfg *lockkeeper.Config) (*tlsfiles.Keeper, error) {
	if cfg.SecureAddr == "" && !cfg.TLSOnClientAddr && t.cert+t.key+t.ca+t.password.File+t.caPassword.File+t.crl != "" {
		return nil, badFlag(flags, "tls-listen", "--tls-cert and the other files for TLS need it, or --tls-on-listen")
	}
	auth, ok := map[string]tls.ClientAuthType{
		"need": tls.RequireAndVerifyClientCert, "want": tls.VerifyClientCertIfGiven, "none": tls.NoClientCert,
	}[strings.ToLower(t.clientAuth)]
	settings := tlsfiles.Settings{ClientAuth: auth, ClientAddresses: t.addresses}
	if err := t.settings(flags, "tls-", &settings); err != nil {
		return nil, err
	}
	switch {
	case !ok:
		return nil, badFlag(flags, "tls-client-auth", "%q is not need, want or none", t.clientAuth)
	case t.cert == "": // no TLS, or Config reports the missing certificate
		return nil, nil
	case auth != tls.NoClientCert && t.ca == "":
		return nil, badFlag(flags, "tls-ca", "it must say whose client certificates to accept, with --tls-client-auth %s", strings.ToLower(t.clientAuth))
	}
	files := tlsfiles.Files{Use: "clients", Cert: t.cert, Key: t.key, Password: tlsfiles.Secret(t.password), CA: t.ca, CAPassword: tlsfiles.Secret(t.caPassword), CRL: t.crl}
	keeper, err := openTLS(flags, "tls-", files, settings, cfg.Logger)
	if err != nil {
		return nil, err
	}
	cfg.TLS = keeper.Server()
	return keeper, nil
}

// openTLS reads files for TLS. Its error names the flag, variable or key with the file, of the flags that begin with prefix.
func openTLS(flags *pflag.FlagSet, prefix string, files tlsfiles.Files, settings tlsfiles.Settings, log *slog.Logger) (*tlsfiles.Keeper, error) {
	keeper, err := tlsfiles.Open(files, settings, log)
	if bad := (*tlsfiles.FileError)(nil); errors.As(err, &bad) {
		return nil, badFlag(flags, prefix+string(bad.Part), "%w", bad)
	}
	return keeper, err
}

// peerTLSFlags are the flags for TLS between members, which authenticate each other.
type peerTLSFlags struct {
	cert, key, ca        string
	password, caPassword secret
	tlsLimits            // only of serve
}

func (t *peerTLSFlags) define(f *pflag.FlagSet) {
	f.StringVar(&t.cert, "peer-tls-cert", "", "PEM `FILE` with the certificate to present to members; with it, all connections between members use TLS."+storeUsage+" with its key")
	f.StringVar(&t.key, "peer-tls-key", "", "PEM `FILE` with its key; by default that of --peer-tls-cert")
	f.Var(&t.password, "peer-tls-password-file", passwordUsage)
	f.StringVar(&t.ca, "peer-tls-ca", "", "PEM `FILE` with the authorities of members' certificates."+storeUsage)
	f.Var(&t.caPassword, "peer-tls-ca-password-file", caPasswordUsage)
}

// load returns nil if no flag is given.
func (t *peerTLSFlags) load(flags *pflag.FlagSet, log *slog.Logger) (*tlsfiles.Keeper, error) {
	switch {
	case t.cert+t.key+t.ca+t.password.File+t.caPassword.File+t.crl == "":
		return nil, nil
	case t.cert == "":
		return nil, badFlag(flags, "peer-tls-cert", "--peer-tls-ca and the other files for TLS need it")
	case t.ca == "":
		return nil, badFlag(flags, "peer-tls-ca", "it must say whose certificates to accept")
	}
	settings := tlsfiles.Settings{ClientAuth: tls.RequireAndVerifyClientCert}
	if err := t.settings(flags, "peer-tls-", &settings); err != nil {
		return nil, err
	}
	files := tlsfiles.Files{Use: "members", Cert: t.cert, Key: t.key, Password: tlsfiles.Secret(t.password), CA: t.ca, CAPassword: tlsfiles.Secret(t.caPassword), CRL: t.crl}
	return openTLS(flags, "peer-tls-", files, settings, log)
}
