package admin_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
)

// A program that embeds a server adds the port for operators to its own HTTP server. Whoever has
// the token may end sessions, and nobody may do anything else.
func ExampleNew() {
	server, err := lockkeeper.Open(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := server.Wait(context.Background()); err != nil {
		log.Fatal(err)
	}

	operators := admin.New(server, admin.Options{EndSessions: true})
	defer operators.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello\n") })
	mux.Handle("/", admin.Protect(operators, "s3cret"))
	web := httptest.NewServer(mux) // or http.ListenAndServe
	defer web.Close()

	for _, path := range []string{"/hello", "/readyz", "/commands/ruok"} {
		response, err := http.Get(web.URL + path)
		if err != nil {
			log.Fatal(err)
		}
		response.Body.Close()
		fmt.Println(path, response.Status)
	}
	// Output:
	// /hello 200 OK
	// /readyz 200 OK
	// /commands/ruok 401 Unauthorized
}

// A program that has metrics of its own adds those of its server, with a label that says which
// server they are of.
func ExampleNewCollector() {
	server, err := lockkeeper.Open(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := server.Wait(context.Background()); err != nil {
		log.Fatal(err)
	}

	collector := admin.NewCollector(server)
	defer collector.Close()
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	prometheus.WrapRegistererWith(prometheus.Labels{"server": "a"}, registry).MustRegister(collector)

	families, err := registry.Gather() // promhttp.HandlerFor does this at every scrape
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range families {
		if name := f.GetName(); name == "znode_count" || strings.HasPrefix(name, "lockkeeper_locks") {
			m := f.GetMetric()[0]
			fmt.Println(name, m.GetLabel()[0].GetValue(), m.GetGauge().GetValue()+m.GetUntyped().GetValue())
		}
	}
	// Output:
	// lockkeeper_locks_held a 0
	// znode_count a 5
}
