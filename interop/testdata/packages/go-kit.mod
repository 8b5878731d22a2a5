module github.com/go-kit/kit

go 1.17

require (
	github.com/go-kit/log v0.2.0
	github.com/go-zookeeper/zk v1.0.2
)

require github.com/go-logfmt/logfmt v0.5.1 // indirect
