package conform

// script is what a check does. It may get one or two connections, each with a session of its own, and
// the path of a znode t.path("n").
type script interface {
	func(*trial) | func(*trial, *conn) | func(*trial, *conn, string) | func(_ *trial, _, _ *conn)
}

func check[S script](name, in, says string, script S) Check {
	c := Check{Name: name, In: in, Says: says}
	switch f := any(script).(type) {
	case func(*trial):
		c.run = f
	case func(*trial, *conn):
		c.run = func(t *trial) { f(t, t.connect()) }
	case func(*trial, *conn, string):
		c.run = func(t *trial) {
			k := t.connect()
			f(t, k, k.create(t.path("n"), nil, 0))
		}
	case func(_ *trial, _, _ *conn):
		c.run = func(t *trial) { f(t, t.connect(), t.connect()) }
	}
	return c
}

// requires, with and alone set the fields of those names.
func requires(f Feature, c Check) Check {
	c.Needs = append(c.Needs, f)
	return c
}

func with(s Setting, c Check) Check {
	c.With = s
	return c
}

func alone(c Check) Check {
	c.Alone = true
	return c
}

func undisturbed(f func(t *trial, k *conn, root string)) func(*trial) {
	return func(t *trial) { t.undisturbed(func(root string) { f(t, t.connect(), root) }) }
}

func takes(n int64, f func(t *trial, k *conn, root string)) func(*trial, *conn) {
	return func(t *trial, k *conn) { k.takes(n, func(root string) { f(t, k, root) }) }
}
