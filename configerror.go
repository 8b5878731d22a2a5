package lockkeeper

import "fmt"

// ConfigError says which field of a [Config] is wrong, and why. [Open] returns
// it, as a *ConfigError.
type ConfigError struct {
	Field  string // its name, such as "MaxFrameBytes"
	Reason string // what is wrong with its value; it names no other field
}

func (e *ConfigError) Error() string { return "lockkeeper: " + e.Field + ": " + e.Reason }

func badField(field, reason string, args ...any) error {
	return &ConfigError{field, fmt.Sprintf(reason, args...)}
}
