// Package repository checks this repository: which package imports which, what the documents name
// and list, what the API is, that every platform compiles, and that tests find faults that are put
// back. It has no code of its own.
package repository
