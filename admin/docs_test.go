package admin_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
)

// shown returns all metrics that some server shows, and the labels that each can have.
func shown(t *testing.T) map[string][]string {
	labels := map[string][]string{"up": nil} // Prometheus' own
	note := func(s *lockkeeper.Server) {
		for name, family := range scrape(t, admin.New(s, admin.Options{Files: func() []admin.FileState {
			return []admin.FileState{{Use: "clients", End: time.Now(), CRLEnd: time.Now()}}
		}, Audit: func() *admin.AuditCounts { return new(admin.AuditCounts) }})) {
			labels[name] = append(labels[name], labelsOf(family)...)
			if family.GetType() == dto.MetricType_HISTOGRAM {
				labels[name+"_bucket"], labels[name+"_sum"], labels[name+"_count"] = append(labels[name], "le"), labels[name], labels[name]
			}
		}
	}
	note(open(t, lockkeeper.Config{DataDir: t.TempDir()}))
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, nil)
		leader, follower := m.roles(t)
		note(leader)
		note(follower)
	})
	return labels
}

func labelsOf(family *dto.MetricFamily) (names []string) {
	for _, m := range family.Metric {
		for _, l := range m.Label {
			names = append(names, l.GetName())
		}
	}
	return names
}

var (
	quoted   = regexp.MustCompile(`"[^"]*"`)
	ranges   = regexp.MustCompile(`\[[^\]]*\]`)
	selector = regexp.MustCompile(`([a-zA-Z_:]\w*)\s*\{([^}]*)\}`)
	grouping = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)`)
	word     = regexp.MustCompile(`[a-zA-Z_:][\w:]*\s*\(?`)
	keywords = []string{"or", "and", "unless", "bool"}
)

// checkExpression checks that the metrics in a PromQL expression, and the labels that select
// them, are among those that are shown. It returns the names of the metrics.
func checkExpression(t *testing.T, shown map[string][]string, where, expr string) (names []string) {
	t.Helper()
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		for matcher := range strings.SplitSeq(quoted.ReplaceAllString(m[2], ""), ",") {
			label := strings.Trim(matcher, " =~!")
			if label != "job" && label != "instance" && !slices.Contains(shown[m[1]], label) {
				t.Errorf("%s: %s has no label %q", where, m[1], label)
			}
		}
	}
	plain := grouping.ReplaceAllString(ranges.ReplaceAllString(quoted.ReplaceAllString(expr, ""), ""), "")
	plain = regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(plain, "")
	for _, name := range word.FindAllString(plain, -1) {
		if strings.HasSuffix(name, "(") || slices.Contains(keywords, strings.TrimSpace(name)) { // a function
			continue
		}
		name = strings.TrimSpace(name)
		if _, ok := shown[name]; !ok {
			t.Errorf("%s: /metrics does not show %s", where, name)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		t.Errorf("%s: no metric in %s", where, expr)
	}
	return names
}

// TestDashboard checks that the dashboard in docs shows only metrics that exist.
func TestDashboard(t *testing.T) {
	var dashboard struct {
		Title  string
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ RefID, Expr string }
		}
		Templating struct{ List []struct{ Query any } }
	}
	check(t, json.Unmarshal(must(os.ReadFile("../docs/grafana-dashboard.json"))(t), &dashboard))
	all := shown(t)
	ids, cells, used := map[int]bool{}, map[[2]int]string{}, map[string]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("%s: a second panel with the id %d", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, taken := cells[[2]int{x, y}]; taken || x >= 24 {
					t.Fatalf("%s overlaps %s, or sticks out, at %d, %d", p.Title, other, x, y)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			for _, name := range checkExpression(t, all, p.Title, target.Expr) {
				used[name] = true
			}
			if !strings.Contains(target.Expr, `job="$job"`) {
				t.Errorf("%s: not only of the job that is chosen: %s", p.Title, target.Expr)
			}
		}
	}
	if len(used) < 20 {
		t.Errorf("only %d metrics are shown: %v", len(used), slices.Sorted(maps.Keys(used)))
	}
}

// TestAlerts checks the alert rules in docs: their form, and that their metrics exist.
func TestAlerts(t *testing.T) {
	text := string(must(os.ReadFile("../docs/alerts.yml"))(t))
	all := shown(t)
	rules := strings.Split(text, "\n      - alert: ")[1:]
	if len(rules) != 16 {
		t.Errorf("%d rules", len(rules))
	}
	for _, rule := range rules {
		name, _, _ := strings.Cut(rule, "\n")
		expr := regexp.MustCompile(`(?m)^        expr: (.*)$`).FindStringSubmatch(rule)
		if expr == nil {
			t.Fatalf("%s has no expression", name)
		}
		checkExpression(t, all, name, expr[1])
		if ended := "lockkeeper_tls_certificate_seconds <= 0"; (name == "LockkeeperCertificateEnded") != (expr[1] == ended) ||
			expr[1] == ended && regexp.MustCompile(`(?m)^        for: `).MatchString(rule) {
			t.Errorf("the alert of a certificate that has ended is not at once: %s", rule)
		}
		for _, form := range []string{`^Lockkeeper\w+$`, `(?m)^        labels: \{severity: (warning|critical)\}$`, `(?m)^          summary: ".*\{\{ \$(labels\.\w+|value)[ |].*"$`, `(?m)^          description: ".*"$`} {
			if where := map[bool]string{true: name, false: rule}[form[1] == 'L']; !regexp.MustCompile(form).MatchString(where) {
				t.Errorf("%s: nothing matches %s", name, form)
			}
		}
	}
}
