// Command highwater runs the parts of a Highwater cluster and operates it. `highwater help` lists what it can do.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
