package procgroup

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"unsafe"
)

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
		if s := syscall.Signal(n); handler == 1 && s != syscall.SIGCHLD && s != syscall.SIGURG {
			signal.Ignore(s)
		}
	}
}

const sigRealTime = 32 // the first one; nobody ignores these

// marks are signals that nobody uses, and no two of which are as far apart as two others.
var marks = []int{44, 45, 48, 55, 57}

// alike is a variable that looks like the runtime's array. The linker sorts such variables by size, so it places them
// close together.
var alike [65]uintptr

// around is how far from alike the array may be, in bytes.
const around = 64 << 10

// replaced returns the handlers that were there before the runtime's, by the numbers of the signals, or nil.
func replaced() []uintptr {
	file, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil
	}
	defer file.Close()
	const page = 4 << 10
	from := int64(uintptr(unsafe.Pointer(&alike))-around) &^ (page - 1)
	read := func() []uintptr {
		words := make([]uintptr, 2*around/unsafe.Sizeof(alike[0]))
		bytes := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 2*around)
		for at := 0; at < len(bytes); at += page {
			file.ReadAt(bytes[at:at+page], from+int64(at)) // if there is such a page
		}
		return words
	}
	before := read()
	var starts []int // of what may be the array
	for start := range len(before) - len(alike) {
		starts = append(starts, start)
	}
	for _, mark := range marks {
		marked := make(chan os.Signal, 1)
		signal.Ignore(syscall.Signal(mark))
		signal.Notify(marked, syscall.Signal(mark))
		signal.Stop(marked)
		after := read()
		starts = slices.DeleteFunc(starts, func(start int) bool { return before[start+mark] != 0 || after[start+mark] != 1 })
		before = after
	}
	if len(starts) != 1 {
		return nil
	}
	return before[starts[0]:][:sigRealTime]
}
