package migrate

// ReadAnd is Read that calls done when it has read all files.
var ReadAnd = read

// Processes looks for processes in a directory like /proc.
func (src *Source) Processes(proc string) (why string, doubts []string) { return src.processes(proc) }
