module github.com/wvanbergen/kazoo-go

go 1.17

require github.com/samuel/go-zookeeper v0.0.0-20201211165307-7117e9ea2414
