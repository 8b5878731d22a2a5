package conform

// check returns a check of the suite. Its script may get one or two connections, each with a
// session of its own.
func check[S func(*trial) | func(*trial, *conn) | func(_ *trial, _, _ *conn)](name, in, says string, script S) Check {
	c := Check{Name: name, In: in, Says: says}
	switch f := any(script).(type) {
	case func(*trial):
		c.run = f
	case func(*trial, *conn):
		c.run = func(t *trial) { f(t, t.connect()) }
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
