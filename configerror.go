package lockkeeper

import "fmt"

// ConfigError reports an invalid field of a [Config]. [Open] and [Restore] return it as a
// *ConfigError.
type ConfigError struct {
	Field  string // name of the field, such as "MaxFrameBytes"
	Reason string // what is wrong with its value; names no other field
}

func (e *ConfigError) Error() string { return "lockkeeper: " + e.Field + ": " + e.Reason }

// portError is the error of a client port that cannot be opened. Command lockkeeper asks it for
// the field of [Config] that has the address, to name the flag.
type portError struct {
	field string
	error
}

func (e portError) ConfigField() string { return e.field }
func (e portError) Unwrap() error       { return e.error }

func badField(field, reason string, args ...any) error {
	return &ConfigError{field, fmt.Sprintf(reason, args...)}
}
