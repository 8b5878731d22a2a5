package deploy

import (
	"os"
	"strings"
	"testing"
)

// commands returns the commands for a shell on docs/kubernetes.md, one a line, without what follows && or a pipe.
func commands(t *testing.T) (lines []string) {
	t.Helper()
	page := must(os.ReadFile(root + "/docs/kubernetes.md"))(t)
	for line := range strings.Lines(string(page)) {
		if line, ok := strings.CutPrefix(line, "    "); ok {
			for part := range strings.FieldsFuncSeq(line, func(r rune) bool { return strings.ContainsRune("&|;", r) }) {
				lines = append(lines, strings.TrimSpace(part))
			}
		}
	}
	return lines
}

// restoreManifest returns the manifest of the pod that restores a snapshot.
func restoreManifest(t *testing.T) string {
	t.Helper()
	page := must(os.ReadFile(root + "/docs/kubernetes.md"))(t)
	_, manifest, found := strings.Cut(string(page), "```yaml\n# restore.yaml")
	manifest, _, ended := strings.Cut(manifest, "```")
	if !found || !ended {
		t.Fatal("docs/kubernetes.md has no restore.yaml")
	}
	return manifest
}

// TestCommands: what docs/kubernetes.md has operators type does what it says.
func TestCommands(t *testing.T) {
	waits := 0
	for _, line := range commands(t) {
		if strings.HasPrefix(line, "kubectl") && strings.Contains(line, " wait ") {
			if waits++; !strings.Contains(line, "--timeout=") {
				t.Errorf("it gives up after 30 s, which a pod may take to stop or a volume to be mounted: %s", line)
			}
		}
		if strings.Contains(line, "component=member") && !strings.Contains(line, "instance=lockkeeper") {
			t.Errorf("it also selects members of other releases: %s", line)
		}
		if strings.HasPrefix(line, "kubectl") && strings.Contains(line, " scale ") {
			t.Errorf("the next upgrade by Helm 4 fails: %s", line)
		}
	}
	if waits < 3 {
		t.Errorf("only %d commands wait", waits)
	}
}
