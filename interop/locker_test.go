//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A locker is a client in a process of its own, which runs this test binary. It takes the
// lock of a cluster, increments a counter in Redis with the lock's fencing token, and
// releases the lock, again and again until its standard input ends. It adds violations
// that it observes to a list in Redis.
//
// The token is the czxid of the lock's znode. Redis refuses a token that is lower than
// the highest one so far. So a holder that has lost the lock without knowing it does no
// harm, which a lock service alone cannot guarantee.

const (
	envLockerAddrs = "LOCKKEEPER_INTEROP_LOCKER_ADDRS"
	envLockerRedis = "LOCKKEEPER_INTEROP_LOCKER_REDIS"
	envLockerName  = "LOCKKEEPER_INTEROP_LOCKER_NAME" // eight digits

	lockerDir     = "/locks"
	lockerSession = 2 * time.Second
	lockerWork    = 20 * time.Millisecond // longest time between reading and writing the counter

	// Keys in Redis, besides the counter and the highest token.
	holderKey     = "holder"     // the client between reading and writing
	writesKey     = "writes"     // number of accepted writes
	refusedKey    = "refused"    // number of stale tokens
	violationsKey = "violations" // list of violations
)

// enterScript begins a turn with a token and reads the counter.
var enterScript = redis.NewScript(`
local last, token = tonumber(redis.call('GET', 'token') or '0'), tonumber(ARGV[1])
if token == last then return 'twice' end
if token < last then redis.call('INCR', 'refused') return 'stale' end
redis.call('SET', 'token', ARGV[1])
redis.call('SET', 'holder', ARGV[2])
return redis.call('GET', 'counter')`)

// writeScript writes the counter, and counts the write separately.
var writeScript = redis.NewScript(`
if redis.call('GET', 'token') ~= ARGV[1] then redis.call('INCR', 'refused') return 'stale' end
redis.call('SET', 'counter', ARGV[2])
redis.call('SET', 'holder', '')
redis.call('INCR', 'writes')
return 'ok'`)

type locker struct {
	name  string
	addrs []string
	redis *redis.Client

	conn    *zk.Conn
	session int64 // session of conn
	turns   int
}

// errSessionOver ends a turn because its znode is deleted, or soon will be.
var errSessionOver = errors.New("the session is over")

func playLocker() error {
	l := &locker{name: os.Getenv(envLockerName), addrs: strings.Split(os.Getenv(envLockerAddrs), ",")}
	l.redis = redis.NewClient(&redis.Options{
		Addr: os.Getenv(envLockerRedis),
		// Never repeat a command that was sent, because it could count twice.
		MaxRetries: -1, ReadTimeout: time.Minute, WriteTimeout: time.Minute,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	for {
		select {
		case <-ended:
			if l.conn != nil {
				l.conn.Close()
			}
			return nil
		default:
		}
		if err := l.turn(); err != nil {
			fmt.Fprintf(os.Stderr, "turn %d: %v\n", l.turns, err)
			// Close closes the session if it can. Otherwise the znode exists until the
			// session expires.
			l.conn.Close()
			l.conn = nil
		}
		l.turns++
	}
}

func (l *locker) violation(format string, args ...any) {
	text := fmt.Sprintf("locker %s, turn %d, session %#x: %s", l.name, l.turns, l.session, fmt.Sprintf(format, args...))
	fmt.Fprintln(os.Stderr, text)
	if err := l.redis.RPush(context.Background(), violationsKey, text).Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// connect opens a connection with a session, unless there already is one.
func (l *locker) connect() error {
	if l.conn != nil {
		return nil
	}
	conn, events, err := zk.Connect(l.addrs, lockerSession, zk.WithLogInfo(false))
	if err != nil {
		return err
	}
	l.conn = conn
	for ev := range events {
		if ev.State == zk.StateHasSession {
			break
		}
	}
	go func() {
		for range events { // the client needs a reader
		}
	}()
	l.session = conn.SessionID()
	return nil
}

// retry repeats f while it fails because of a lost connection, until the session ends. f
// must tolerate that an earlier attempt has succeeded.
func (l *locker) retry(f func() error) error {
	for {
		err := f()
		switch {
		case l.conn.SessionID() != l.session, errors.Is(err, zk.ErrSessionExpired):
			return errSessionOver
		case errors.Is(err, zk.ErrConnectionClosed), errors.Is(err, zk.ErrNoServer):
			time.Sleep(10 * time.Millisecond)
		default:
			return err
		}
	}
}

// turn takes the lock once, in one of three turns with go-zookeeper's own lock.
func (l *locker) turn() error {
	if err := l.connect(); err != nil {
		return err
	}
	if l.turns%3 == 0 {
		lock := zk.NewLock(l.conn, lockerDir, openACL)
		if err := lock.Lock(); err != nil {
			return fmt.Errorf("zk.Lock: %w", err)
		}
		own, token, err := l.first()
		if err != nil {
			return err
		}
		if err := l.work(own, token); err != nil {
			return err
		}
		return lock.Unlock()
	}
	own, err := l.enqueue()
	if err != nil {
		return err
	}
	if err := l.await(own); err != nil {
		return err
	}
	var token int64
	err = l.retry(func() error {
		exists, s, err := l.conn.Exists(own)
		if err == nil && !exists {
			return errSessionOver
		}
		if err == nil {
			token = s.Czxid
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := l.work(own, token); err != nil {
		return err
	}
	err = l.retry(func() error { return l.conn.Delete(own, -1) })
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return err
}

// place returns a znode's number in the queue.
func place(name string) int64 {
	n, _ := strconv.ParseInt(name[strings.LastIndexByte(name, '-')+1:], 10, 64)
	return n
}

func (l *locker) line() (names []string, err error) {
	err = l.retry(func() error {
		names, _, err = l.conn.Children(lockerDir)
		return err
	})
	slices.SortFunc(names, func(a, b string) int { return int(place(a) - place(b)) })
	return names, err
}

// first finds the znode that zk.Lock has created, which must be the first in the queue.
func (l *locker) first() (own string, token int64, err error) {
	names, err := l.line()
	if err != nil {
		return "", 0, err
	}
	if len(names) == 0 {
		return "", 0, errSessionOver
	}
	own = lockerDir + "/" + names[0]
	err = l.retry(func() error {
		exists, s, err := l.conn.Exists(own)
		if err == nil && (!exists || s.EphemeralOwner != l.session) {
			return errSessionOver
		}
		if err == nil {
			token = s.Czxid
		}
		return err
	})
	return own, token, err
}

// enqueue creates a znode at the end of the queue. If the reply is lost, it looks for the
// znode by its name.
func (l *locker) enqueue() (own string, err error) {
	mark := fmt.Sprintf("_c_%s%024d", l.name, l.turns) // as long as that of zk.Lock, which requires this
	unknown := false
	err = l.retry(func() error {
		if unknown {
			if own, err = l.find(mark); err != nil || own != "" {
				return err
			}
		}
		own, err = l.conn.Create(lockerDir+"/"+mark+"-lock-", nil, zk.FlagEphemeral|zk.FlagSequence, openACL)
		unknown = unknown || err != nil
		return err
	})
	if err == nil && unknown {
		// No request of a connection may be applied after the session has moved.
		if one, err := l.find(mark); err == nil && one != own {
			l.violation("created %s, and there is %q", own, one)
		}
	}
	return own, err
}

// find returns the znode whose name contains mark, or "".
func (l *locker) find(mark string) (string, error) {
	names, _, err := l.conn.Children(lockerDir)
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, mark+"-") })
	switch len(names) {
	case 0:
		return "", err
	case 1:
		return lockerDir + "/" + names[0], err
	}
	l.violation("one create made %q", names)
	return "", errSessionOver
}

// await waits until own is the first in the queue.
func (l *locker) await(own string) error {
	for {
		names, err := l.line()
		if err != nil {
			return err
		}
		at := slices.Index(names, path.Base(own))
		if at < 0 {
			return errSessionOver
		}
		if at == 0 {
			return nil
		}
		var gone <-chan zk.Event
		err = l.retry(func() error {
			exists, _, events, err := l.conn.ExistsW(lockerDir + "/" + names[at-1])
			if gone = events; err == nil && !exists {
				gone = nil
			}
			return err
		})
		if err != nil {
			return err
		}
		if gone != nil {
			<-gone // the next request returns an error of the session
		}
	}
}

// work increments the counter, which it reads and writes with the token.
func (l *locker) work(own string, token int64) error {
	ctx, text := context.Background(), strconv.FormatInt(token, 10)
	got, err := enterScript.Run(ctx, l.redis, nil, text, l.name).Text()
	if err != nil {
		return err
	}
	if got != "stale" && got != "twice" {
		n, err := strconv.Atoi(got)
		if err != nil {
			return err
		}
		time.Sleep(rand.N(lockerWork))
		if got, err = writeScript.Run(ctx, l.redis, nil, text, n+1).Text(); err != nil {
			return err
		}
	}
	switch got {
	case "ok":
		return nil
	case "twice":
		l.violation("%s: somebody else has token %#x", own, token)
	}
	// A later client in the queue already had the lock. Then this znode must be deleted.
	err = l.retry(func() error {
		if _, err := l.conn.Sync(own); err != nil {
			return err
		}
		exists, s, err := l.conn.Exists(own)
		if err == nil && exists {
			l.violation("token %#x was passed by while %s, of session %#x, was there", token, own, s.EphemeralOwner)
		}
		return err
	})
	if err == nil {
		err = errSessionOver
	}
	return err
}

// lockerProcess is a running locker.
type lockerProcess struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr *tail
	exited chan struct{}
}

func startLocker(t testing.TB, name, addrs, redis string) *lockerProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &lockerProcess{name: name, cmd: exec.Command(self), stderr: &tail{}, exited: make(chan struct{})}
	p.cmd.Env = append(cleanEnv(), envRole+"=locker", envLockerAddrs+"="+addrs, envLockerRedis+"="+redis, envLockerName+"="+name, "GOMAXPROCS=1")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	check(t, p.cmd.Start())
	go func() {
		p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *lockerProcess) kill() {
	p.cmd.Process.Kill()
	<-p.exited
}
