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

// tlsFiles are flags that clients and members have, whose names begin with prefix: files, and what makes TLS accept less.
type tlsFiles struct {
	prefix                  string
	cert, key, ca           string
	password, caPassword    secret
	crl, protocols, ciphers string // for members, only of serve
}

// define defines the flags for files. What help says about the first one is certificate.
func (t *tlsFiles) define(f *pflag.FlagSet, prefix, certificate, whose string) {
	const storeUsage = " Instead of a PEM file it may be a PKCS #12 or JKS store"
	t.prefix = prefix
	f.StringVar(&t.cert, prefix+"cert", "", "PEM `FILE` with "+certificate+"."+storeUsage+" with its key")
	f.StringVar(&t.key, prefix+"key", "", "PEM `FILE` with its key; by default that of --"+prefix+"cert")
	f.Var(&t.password, prefix+"password-file", "`FILE` with the password of the key, if it is encrypted, or of the store")
	f.StringVar(&t.ca, prefix+"ca", "", "PEM `FILE` with the authorities of "+whose+"."+storeUsage)
	f.Var(&t.caPassword, prefix+"ca-password-file", "`FILE` with the password of the store with the authorities")
}

func (t *tlsFiles) defineLimits(f *pflag.FlagSet, whose string) {
	f.StringVar(&t.crl, t.prefix+"crl", "", "`FILE` with lists of revoked certificates (CRLs) of "+whose+", in PEM or DER form. Then each certificate needs a list of its issuer that has not ended")
	f.StringVar(&t.protocols, t.prefix+"protocols", "", "versions of TLS, a comma-separated `LIST` of TLSv1.2 and TLSv1.3, or the older TLSv1 and TLSv1.1; by default the first two")
	f.StringVar(&t.ciphers, t.prefix+"ciphers", "", "cipher suites, a comma-separated `LIST`. TLS 1.3 is only used with one of its own in the list, and then with all that Go has")
}

// given reports whether a flag names a file.
func (t *tlsFiles) given() bool {
	return t.cert+t.key+t.ca+t.password.File+t.caPassword.File+t.crl != ""
}

// settings adds the limits to s.
func (t *tlsFiles) settings(flags *pflag.FlagSet, s *tlsfiles.Settings) error {
	for _, x := range []struct {
		flag, text string
		set        func([]string) error
	}{{"protocols", t.protocols, s.SetProtocols}, {"ciphers", t.ciphers, s.SetCipherSuites}} {
		items, err := listFlag(flags, t.prefix+x.flag, x.text)
		if err != nil {
			return err
		}
		if err := x.set(items); err != nil {
			return badFlag(flags, t.prefix+x.flag, "%w", err)
		}
	}
	return nil
}

// open reads the files. use says in the log and the metrics what they are for.
func (t *tlsFiles) open(flags *pflag.FlagSet, use string, settings tlsfiles.Settings, log *slog.Logger) (*tlsfiles.Keeper, error) {
	files := tlsfiles.Files{Use: use, Cert: t.cert, Key: t.key, Password: tlsfiles.Secret(t.password), CA: t.ca, CAPassword: tlsfiles.Secret(t.caPassword), CRL: t.crl}
	return openTLS(flags, t.prefix, files, settings, log)
}

// tlsFlags are the flags for TLS with clients that are not fields of the configuration.
type tlsFlags struct {
	tlsFiles
	clientAuth string
	addresses  bool
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

func (t *tlsFlags) define(f *pflag.FlagSet, cfg *lockkeeper.Config) {
	f.StringVar(&cfg.SecureAddr, "tls-listen", "", "`ADDRESS` for clients that speak TLS; port 0 picks a free one")
	t.tlsFiles.define(f, "tls-", "the server's certificate and intermediate certificates", "client certificates")
	f.BoolVar(&cfg.TLSOnClientAddr, "tls-on-listen", false, "let clients use TLS at --listen, too, beside those that do not; ZooKeeper's client.portUnification")
	t.defineLimits(f, "clients")
	f.BoolVar(&t.addresses, "tls-client-addresses", false, "refuse a client whose certificate is not for its IP address")
	f.StringVar(&t.clientAuth, "tls-client-auth", "need", "`MODE` for client certificates: need, want or none")
	f.StringVar(&cfg.Auth.SuperX509, "x509-super-user", "", "the super user, as the `SUBJECT` of a client certificate, such as CN=admin,O=Example")
}

// load reads the files into cfg, and returns what keeps them up to date; nil without TLS.
func (t *tlsFlags) load(flags *pflag.FlagSet, cfg *lockkeeper.Config) (*tlsfiles.Keeper, error) {
	if cfg.SecureAddr == "" && !cfg.TLSOnClientAddr && t.given() {
		return nil, badFlag(flags, "tls-listen", "--tls-cert and the other files for TLS need it, or --tls-on-listen")
	}
	auth, ok := map[string]tls.ClientAuthType{
		"need": tls.RequireAndVerifyClientCert, "want": tls.VerifyClientCertIfGiven, "none": tls.NoClientCert,
	}[strings.ToLower(t.clientAuth)]
	settings := tlsfiles.Settings{ClientAuth: auth, ClientAddresses: t.addresses}
	if err := t.settings(flags, &settings); err != nil {
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
	keeper, err := t.open(flags, "clients", settings, cfg.Logger)
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
type peerTLSFlags struct{ tlsFiles }

func (t *peerTLSFlags) define(f *pflag.FlagSet) {
	t.tlsFiles.define(f, "peer-tls-", "the certificate to present to members; with it, all connections between members use TLS", "members' certificates")
}

// load returns nil if no flag is given.
func (t *peerTLSFlags) load(flags *pflag.FlagSet, log *slog.Logger) (*tlsfiles.Keeper, error) {
	switch {
	case !t.given():
		return nil, nil
	case t.cert == "":
		return nil, badFlag(flags, "peer-tls-cert", "--peer-tls-ca and the other files for TLS need it")
	case t.ca == "":
		return nil, badFlag(flags, "peer-tls-ca", "it must say whose certificates to accept")
	}
	settings := tlsfiles.Settings{ClientAuth: tls.RequireAndVerifyClientCert}
	if err := t.settings(flags, &settings); err != nil {
		return nil, err
	}
	return t.open(flags, "members", settings, log)
}
