package membership

// The methods in this file are for tests of other packages.

// Hold keeps the list of members as it is until Release is called.
func (m *Membership) Hold() { m.changing.Take() }

// Release ends Hold.
func (m *Membership) Release() { m.changing.Give() }

// HasAsked reports whether this server has asked a cluster for its place.
func (m *Membership) HasAsked() bool { return m.joiner.hasAsked.Load() }

// WasCalled reports whether a member of a cluster has called this server, which is not in one yet.
func (m *Membership) WasCalled() bool { return m.joiner.caller.Load() != nil }
