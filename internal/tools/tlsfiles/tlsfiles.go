// Package tlsfiles makes TLS configurations of files with certificates, keys and authorities, and
// makes them anew when the files change, while the program runs.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/reread"
)

// Files are the files of one use of TLS. What is in a file decides its format: PEM, PKCS #12 or
// JKS. Keys in PEM files may be encrypted as PKCS #8 with PBES2: with AES in CBC mode or 3DES, by
// PBKDF2 with HMAC-SHA1 or HMAC-SHA256, or by scrypt.
type Files struct {
	Use        string // for the log: clients, members or admin
	Cert       string // the certificate to present, and those that connect it to an authority; may be empty for Dial
	Key        string // its key; empty means that it is in Cert, as in a store
	Password   Secret // of the key or the store
	CA         string // the authorities of the other side's certificates; may be empty
	CAPassword Secret // of the store with the authorities
	CRL        string // lists of revoked certificates of the other side; may be empty
}

// Settings are the parts of a TLS configuration that are not in files.
type Settings struct {
	ClientAuth tls.ClientAuthType // of connections that are accepted
	// ClientAddresses refuses a client whose certificate is not for its IP address.
	ClientAddresses        bool
	MinVersion, MaxVersion uint16   // 0 means TLS 1.2 and the newest one; see SetProtocols
	CipherSuites           []uint16 // of TLS 1.2 and older; nil means those of crypto/tls; see SetCipherSuites
	NextProtos             []string
}

// State says how it is with the files of a Keeper.
type State struct {
	End    time.Time // of the first certificate to end, among those that are presented
	CRLEnd time.Time // of the first list of revoked certificates to end; zero without any
	reread.State
}

// Keeper has the TLS configurations that files say. Its methods are safe for concurrent use.
//
// Connections keep the configuration with which they began. A client that resumes an earlier TLS
// session is judged by the files as they are now, like every other.
type Keeper struct {
	*reread.Keeper
	files    Files
	settings Settings
	log      *slog.Logger
	now      atomic.Pointer[loaded]
}

// loaded is what was made of files. It does not change.
type loaded struct {
	server, dial *tls.Config
	end, crlEnd  time.Time
	own          []*x509.Certificate // those that are presented, without their issuers
	authorities  []*x509.Certificate
	lists        revocations
}

// Open reads the files. Its errors are of type *FileError.
func Open(files Files, settings Settings, log *slog.Logger) (*Keeper, error) {
	k := &Keeper{files: files, settings: settings, log: log}
	var err error
	k.Keeper, err = reread.Open("TLS", files.Use, k.read, k.put, log)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Server returns the configuration for accepted connections. It does not change, and each
// connection gets what the files say when it begins.
func (k *Keeper) Server() *tls.Config {
	return &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		server := k.now.Load().server
		if !k.settings.ClientAddresses {
			return server, nil
		}
		own := server.Clone()
		own.VerifyConnection = func(s tls.ConnectionState) error {
			if err := forAddress(s, hello.Conn.RemoteAddr()); err != nil || server.VerifyConnection == nil {
				return err
			}
			return server.VerifyConnection(s)
		}
		return own, nil
	}}
}

// Dial returns the configuration for a connection that this program makes now. The caller must
// not change it.
func (k *Keeper) Dial() *tls.Config { return k.now.Load().dial }

// State returns how it is with the files.
func (k *Keeper) State() State {
	now := k.now.Load()
	return State{now.end, now.crlEnd, k.Keeper.State()}
}

func (k *Keeper) read() reread.Contents {
	f := &k.files
	return reread.Read(f.Cert, f.Key, f.Password.File, f.CA, f.CAPassword.File, f.CRL)
}

// put puts files to use. They do not replace better ones: see replaces. Where there are none to fall back to,
// certificates that are not valid now are no reason to refuse files: the clock may be wrong, and the ports without TLS
// and the other members are better served than not.
func (k *Keeper) put(c reread.Contents) ([]any, error) {
	next, err := k.load(contents(c))
	if err != nil {
		return nil, err
	}
	at := time.Now()
	if err := next.replaces(k.now.Load(), &k.files, at); err != nil {
		return nil, err
	}
	k.now.Store(next)
	use := k.files.Use
	switch i := slices.IndexFunc(next.own, func(cert *x509.Certificate) bool { return !valid(cert, at) }); {
	case i >= 0:
		k.log.Error("a certificate "+why(next.own[i], at)+", and nobody who checks it accepts it", "for", use, "file", k.files.Cert)
	case !next.end.IsZero() && at.After(next.end):
		k.log.Warn("a certificate that comes with the server's own has ended, and some who check it may not accept it", "for", use, "file", k.files.Cert, "end", next.end)
	}
	if len(next.authorities) > 0 && !anyValid(next.authorities, at) {
		k.log.Error("no authority is valid now, so no certificate is accepted", "for", use, "file", k.files.CA)
	}
	if !next.crlEnd.IsZero() && at.After(next.crlEnd) {
		k.log.Error("a list of revoked certificates has ended, and certificates that need it are refused", "for", use, "file", k.files.CRL, "end", next.crlEnd)
	}
	return []any{"until", next.end}, nil
}

// contents is what is in files, by their names.
type contents reread.Contents
