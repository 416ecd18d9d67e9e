// A server of Google's storage protocol over a folder, on a free port of the loopback interface, for requests with one
// bearer token. Arguments: the folder and the bucket to make. The token is in STORE_TOKEN. Prints the port; ends with its
// input.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

// allowed says whether a request has the token. The parts of a batch have it, and not the batch.
func allowed(r *http.Request, bearer string) bool {
	if !strings.HasPrefix(r.URL.Path, "/batch/") {
		return r.Header.Get("Authorization") == bearer
	}
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return err == nil && bytes.Count(body, []byte(bearer)) == bytes.Count(body, []byte("application/http"))
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	address := listener.Addr().(*net.TCPAddr)
	store, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		StorageRoot: os.Args[1],
		NoListener:  true,
		ExternalURL: "http://" + address.String(), // where the client continues an upload
		PublicHost:  address.String(),             // where the client reads
	})
	if err != nil {
		panic(err)
	}
	store.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: os.Args[2]})
	bearer := "Bearer " + os.Getenv("STORE_TOKEN")
	files := store.HTTPHandler()
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if allowed(r, bearer) {
			files.ServeHTTP(w, r)
		} else {
			http.Error(w, `{"error": {"code": 401, "message": "Invalid Credentials"}}`, http.StatusUnauthorized)
		}
	}))
	fmt.Println(address.Port)
	io.Copy(io.Discard, os.Stdin)
}
