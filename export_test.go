package lockkeeper

import "time"

// SetHandshakeTimeout sets how long a client has for TLS and its first frame.
func (c *Config) SetHandshakeTimeout(d time.Duration) { c.handshakeTimeout = d }
