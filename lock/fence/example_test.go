package fence_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/lockkeeper/lockkeeper/lock/fence"
)

// A server protects a device. The holder with token 7 was paused, and 8 has the lock.
func ExampleChecker_Do() {
	var checker fence.Checker
	device := "off"
	set := func(token int64, to string) {
		err := checker.Do(token, func() error {
			device = to
			return nil
		})
		fmt.Println(device, err)
	}
	set(7, "on")
	set(8, "standby")
	set(7, "on")
	// Output:
	// on <nil>
	// standby <nil>
	// standby fence: stale token: 0x7, after 0x8
}

// saveReport writes a row only if no greater token has written it. The check and the write are
// one statement, so nothing comes between them.
//
//	CREATE TABLE reports (name TEXT PRIMARY KEY, body TEXT NOT NULL, token BIGINT NOT NULL)
func saveReport(ctx context.Context, db *sql.DB, token int64, name, body string) error {
	result, err := db.ExecContext(ctx, `
		INSERT INTO reports (name, body, token) VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE SET body = excluded.body, token = excluded.token
		WHERE reports.token <= excluded.token`, name, body, token)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		return fmt.Errorf("%w: %#x for report %s", fence.ErrStale, token, name)
	}
	return nil
}

// In PostgreSQL and SQLite, one statement checks the token and writes. A token fits a signed
// column of 64 bits.
func ExampleErrStale_sql() {
	var (
		ctx   context.Context // of lock.Held.Context, so that the statement ends with the lock
		db    *sql.DB
		token int64 // of lock.Held.Token
	)
	example := func() {
		if err := saveReport(ctx, db, token, "sales", "42"); err != nil {
			log.Print(err) // another one has the lock now
		}
	}
	_ = example // it needs a database
}

// publish writes a file whose name contains the token. Readers take the one with the greatest
// token, so what a stale holder publishes, however late, is never read. No file is changed
// after it has its name.
func publish(dir string, token int64, data string) error {
	if newest, _ := current(dir); newest > fileName(token) {
		return fmt.Errorf("%w: %#x", fence.ErrStale, token) // not necessary, but good to know
	}
	f, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // if it has not got its name
	if _, err := f.WriteString(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, fileName(token)))
}

func fileName(token int64) string { return fmt.Sprintf("report-%016x", token) }

// current returns the name and the content of the newest file.
func current(dir string) (name, data string) {
	names, _ := filepath.Glob(filepath.Join(dir, "report-*")) // sorted
	if len(names) == 0 {
		return "", ""
	}
	newest := names[len(names)-1]
	content, err := os.ReadFile(newest)
	if err != nil {
		log.Fatal(err)
	}
	return filepath.Base(newest), string(content)
}

// Files that many processes write have the token in their names.
func ExampleErrStale_files() {
	dir, err := os.MkdirTemp("", "reports-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	fmt.Println(publish(dir, 7, "of the first"))
	fmt.Println(publish(dir, 8, "of the second"))
	fmt.Println(publish(dir, 7, "late"))
	fmt.Println(current(dir))
	// Output:
	// <nil>
	// <nil>
	// fence: stale token: 0x7
	// report-0000000000000008 of the second
}

// After a restart, a Checker begins with the greatest token with which something was stored.
func ExampleNewChecker() {
	stored := int64(8) // read back from where the device's state is kept
	checker := fence.NewChecker(stored)
	fmt.Println(checker.Check(7))
	fmt.Println(checker.Check(9), checker.Highest())
	// Output:
	// fence: stale token: 0x7, after 0x8
	// <nil> 9
}
