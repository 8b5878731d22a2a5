package lock

// Plants are options that put faults in.
var Plants = map[string]Option{
	"counts from the answer": func(o *options) { o.planted = countFromAnswer },
	"trusts the session":     func(o *options) { o.planted = trustSession },
	"forgets lost creates":   func(o *options) { o.planted = forgetUnknown },
}
