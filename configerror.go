package lockkeeper

import "fmt"

// ConfigError reports an invalid field of a [Config]. [Open] and [Restore] return it as a
// *ConfigError.
type ConfigError struct {
	Field  string // name of the field, such as "MaxFrameBytes"
	Reason string // what is wrong with its value; names no other field
}

func (e *ConfigError) Error() string { return "lockkeeper: " + e.Field + ": " + e.Reason }

func badField(field, reason string, args ...any) error {
	return &ConfigError{field, fmt.Sprintf(reason, args...)}
}
