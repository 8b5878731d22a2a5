package persona

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestDocs checks that docs/compatibility.md has the table. With -rewrite it updates the page.
func TestDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("| since | what | the lines before |\n|---|---|---|\n")
	for since := Oldest + 1; since <= Newest; since++ {
		for _, r := range Table {
			if r.Since != since {
				continue
			}
			before := r.Before
			if r.From > Oldest {
				before = fmt.Sprintf("from %s on: %s", r.From, before)
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", r.Since, r.what(), before)
		}
	}
	b.WriteString("\nWhat a persona keeps of 3.9:\n\n| until | what the older line does | why a persona does not |\n|---|---|---|\n")
	for _, k := range Kept {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", k.Before-1, k.Says, k.Why)
	}
	testkit.Generated(t, "../../../docs/compatibility.md", "personas", b.String())
}

// what says in one phrase what a row is about.
func (r *Row) what() string {
	var names []string
	for _, op := range r.Ops {
		names = append(names, proto.OpByCode(op).Name)
	}
	for _, code := range r.Codes {
		names = append(names, code.String())
	}
	for _, list := range [][]string{r.Words, r.Commands} {
		names = append(names, list...)
	}
	for _, key := range r.Monitor {
		names = append(names, "zk_"+key)
	}
	list := strings.Join(names, ", ")
	switch {
	case len(r.Ops) > 0:
		if len(names) == 1 {
			return "the operation " + list
		}
		return "the operations " + list
	case len(r.Codes) > 0:
		return "the error codes " + list
	case len(r.Words) > 0:
		return "the four-letter word " + list
	case len(r.Commands) > 0:
		return "in the AdminServer: " + list
	case len(r.Monitor) > 0:
		return "in mntr: " + list
	}
	return r.Says
}
