package procgroup

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"unsafe"
)

const word = int(unsafe.Sizeof(uintptr(0)))

// KeepIgnoring ignores the signals that were ignored when this program was started, so that the programs
// which it starts ignore them, too, as POSIX wants it of exec. Of HUP and INT the runtime takes care. For the others
// it has installed handlers before main, and the kernel does not know any more what was before. But the
// runtime itself does: it keeps the handlers that it has replaced in an array with a word for each
// signal, in which 1 stands for SIG_IGN. No API leads to it, and the linker lets nobody name
// it. So KeepIgnoring makes the runtime write into the array, and sees where: Notify after Ignore stores
// that the signal was ignored. If nothing in the program's memory, or more than one place, has
// changed like such an array, KeepIgnoring does nothing.
//
// CHLD is left alone, since the kernel keeps no exit codes for those who ignore it, and so is URG, which does nothing by
// default and which the runtime needs.
func KeepIgnoring() {
	for n, handler := range replaced() {
		if s := syscall.Signal(n); handler == 1 && n < sigRealTime && s != syscall.SIGCHLD && s != syscall.SIGURG {
			signal.Ignore(s)
		}
	}
}

const sigRealTime = 32 // the first one; nobody ignores these

// marks are signals that nobody uses, and no two of which are as far apart as two others.
var marks = []int{44, 45, 48, 55, 57}

// replaced returns the handlers that were there before the runtime's, by the numbers of the signals, or nil.
func replaced() []uint64 {
	memory := &memory{}
	before, err := memory.read(nil)
	if err != nil {
		return nil
	}
	var starts []int // of what may be the array
	var spare []byte
	for i, mark := range marks {
		marked := make(chan os.Signal, 1)
		signal.Ignore(syscall.Signal(mark))
		signal.Notify(marked, syscall.Signal(mark))
		signal.Stop(marked)
		after, err := memory.read(spare)
		if err != nil || len(after) != len(before) {
			return nil
		}
		is := func(start int) bool {
			at := start + mark*word
			return start >= 0 && at+(65-mark)*word <= len(before) && get(before, at) == 0 && get(after, at) == 1
		}
		if i == 0 {
			for at := mark * word; at < len(before); at += word {
				if start := at - mark*word; is(start) {
					starts = append(starts, start)
				}
			}
		}
		starts = slices.DeleteFunc(starts, func(start int) bool { return !is(start) })
		before, spare = after, before
	}
	if len(starts) != 1 {
		return nil
	}
	var handlers []uint64
	for n := range sigRealTime {
		handlers = append(handlers, get(before, starts[0]+n*word))
	}
	return handlers
}

// get returns a word.
func get(b []byte, at int) uint64 {
	if word == 4 {
		return uint64(binary.NativeEndian.Uint32(b[at:]))
	}
	return binary.NativeEndian.Uint64(b[at:])
}

// alike is a variable that looks like the runtime's array, so that the linker places it near that.
var alike [65]uintptr

// memory is that of this program's variables.
type memory struct {
	parts []part
}

type part struct{ start, end uint64 }

// read reads it, into a slice if that is large enough.
func (m *memory) read(into []byte) ([]byte, error) {
	if m.parts == nil {
		if err := m.find(); err != nil {
			return nil, err
		}
	}
	file, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	into = into[:0]
	for _, p := range m.parts {
		n, more := len(into), int(p.end-p.start)
		into = slices.Grow(into, more)[:n+more]
		if _, err := file.ReadAt(into[n:], int64(p.start)); err != nil {
			return nil, err
		}
	}
	return into, nil
}

// find finds the parts of the program's file that can be written to, and the memory right behind
// them, which has the variables that are zero at first.
func (m *memory) find() error {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	end := uint64(0)
	for line := range strings.Lines(string(text)) {
		var p part
		var mode, offset, device, inode string
		if _, err := fmt.Sscanf(line, "%x-%x %s %s %s %s", &p.start, &p.end, &mode, &offset, &device, &inode); err != nil {
			return err
		}
		ours := strings.HasSuffix(strings.TrimSuffix(line, "\n"), " "+self)
		nameless := len(strings.Fields(line)) == 5
		if strings.HasPrefix(mode, "rw") && (ours || nameless && p.start == end) {
			end = p.end
			const around = 1 << 20 // the race detector has hundreds of MB more there
			at := uint64(uintptr(unsafe.Pointer(&alike))) &^ 4095
			if p.start, p.end = max(p.start, at-min(at, around)), min(p.end, at+around); p.start < p.end {
				m.parts = append(m.parts, p)
			}
		}
	}
	return nil
}
