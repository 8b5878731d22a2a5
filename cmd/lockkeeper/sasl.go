package main

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/saslfiles"
)

// saslFlags are the flags for SASL that are not fields of the configuration.
type saslFlags struct {
	file, section           string
	removeHost, removeRealm bool
}

func (s *saslFlags) define(f *pflag.FlagSet, cfg *lockkeeper.Config) {
	f.StringVar(&s.file, "jaas", "", "JAAS `FILE` for SASL, as for ZooKeeper: with the users who can authenticate with DIGEST-MD5, user_NAME=\"PASSWORD\" of a DigestLoginModule, or with principal and keyTab of a Krb5LoginModule for GSSAPI (Kerberos). The file and the keytab are read again when they change, and at SIGHUP")
	f.StringVar(&s.section, "jaas-section", "Server", "`NAME` of the section of --jaas that counts, as in ZooKeeper's zookeeper.sasl.serverconfig")
	f.StringArrayVar(&cfg.Auth.SASL.SuperUsers, "sasl-super-user", nil, "`NAME` of a user of SASL to whom no ACL applies, as ZooKeeper's zookeeper.superUser; may be given more than once")
	f.BoolVar(&s.removeHost, "kerberos-remove-host", false, "with Kerberos, leave /HOST of a client's principal out of its identity, as ZooKeeper's kerberos.removeHostFromPrincipal does")
	f.BoolVar(&s.removeRealm, "kerberos-remove-realm", false, "with Kerberos, leave @REALM of a client's principal out of its identity, as ZooKeeper's kerberos.removeRealmFromPrincipal does")
	f.BoolVar(&cfg.Auth.SASL.AllowFailed, "sasl-allow-failed", false, "let clients continue, without an identity, that fail to authenticate with SASL, as ZooKeeper's zookeeper.allowSaslFailedClients does")
}

// load reads the file into cfg. Without a file, it returns nil.
func (s *saslFlags) load(flags *pflag.FlagSet, cfg *lockkeeper.Config) (*saslfiles.Keeper, error) {
	if s.file == "" {
		for _, name := range []string{"jaas-section", "sasl-super-user", "kerberos-remove-host", "kerberos-remove-realm", "sasl-allow-failed"} {
			if f := flags.Lookup(name); f.Value.String() != f.DefValue {
				return nil, badFlag(flags, name, "it needs --jaas, which says who can authenticate")
			}
		}
		return nil, nil
	}
	files := saslfiles.Files{JAAS: s.file, Section: s.section, RemoveHost: s.removeHost, RemoveRealm: s.removeRealm, SuperUsers: cfg.Auth.SASL.SuperUsers}
	keeper, err := saslfiles.Open(files, cfg.Logger)
	if nobody := (*saslfiles.SuperUserError)(nil); errors.As(err, &nobody) {
		return nil, badFlag(flags, "sasl-super-user", "%w", nobody)
	} else if err != nil {
		return nil, badFlag(flags, "jaas", "%w", err)
	}
	cfg.Auth.SASL.Mechanism = func() lockkeeper.SASLExchange { return keeper.Begin() }
	for name, given := range map[string]bool{"kerberos-remove-host": s.removeHost, "kerberos-remove-realm": s.removeRealm} {
		if given && !keeper.Kerberos() {
			return nil, badFlag(flags, name, "--jaas has users with passwords, not a principal of Kerberos")
		}
	}
	return keeper, nil
}
