package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// zooForm is how ZooKeeper 3.9 reads a value: the form of the class that reads its key.
type zooForm struct {
	says string // what is accepted, in a word that docs/zoo.cfg.md explains
	// read returns the value as the rules expect it. ok is false for one that counts as absent.
	read func(value string) (canonical string, ok bool, err error)
}

var (
	// parseInt is a number for Integer.parseInt.
	parseInt = zooForm{"decimal", func(value string) (string, bool, error) {
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			err = errors.New("not a whole number")
		}
		return strconv.FormatInt(n, 10), true, err
	}}
	// getInteger is a number for Integer.getInteger, which gives the default instead of an error.
	getInteger = zooForm{"number", func(value string) (string, bool, error) {
		sign, digits, base := "+", value, 10
		if strings.HasPrefix(value, "+") || strings.HasPrefix(value, "-") {
			sign, digits = value[:1], value[1:]
		}
		switch {
		case strings.HasPrefix(digits, "0x"), strings.HasPrefix(digits, "0X"):
			digits, base = digits[2:], 16
		case strings.HasPrefix(digits, "#"):
			digits, base = digits[1:], 16
		case strings.HasPrefix(digits, "0") && len(digits) > 1:
			digits, base = digits[1:], 8
		}
		n, err := strconv.ParseInt(sign+digits, base, 32)
		return strconv.FormatInt(n, 10), err == nil, nil
	}}
	// parseBoolean is a value for Boolean.parseBoolean and Boolean.getBoolean.
	parseBoolean = zooForm{"boolean", func(value string) (string, bool, error) {
		return strconv.FormatBool(strings.EqualFold(value, "true")), true, nil
	}}
	// trueOrFalse is a value for QuorumPeerConfig.parseBoolean.
	trueOrFalse = zooForm{"true or false", func(value string) (string, bool, error) {
		value = strings.ToLower(value)
		if value != "true" && value != "false" {
			return "", true, errors.New("neither true nor false")
		}
		return value, true, nil
	}}
	// anyCase is a name of an enum.
	anyCase = zooForm{"in any case", func(value string) (string, bool, error) { return strings.ToLower(value), true, nil }}
)

// exactly is a value that ZooKeeper compares with one text.
func exactly(value, otherwise string) zooForm {
	return zooForm{fmt.Sprintf("anything but `%s` is `%s`", value, otherwise), func(is string) (string, bool, error) {
		if is == value {
			return value, true, nil
		}
		return otherwise, true, nil
	}}
}

// normalize gives each value the form that its rule expects. A number that ZooKeeper does not read, and
// replaces by the default, is logged and counts as absent.
func (z *zooFile) normalize(log *slog.Logger, bad func(key string, err error) error) error {
	for _, key := range slices.Sorted(maps.Keys(z.keys)) {
		name, value := strings.TrimPrefix(key, zooPrefix), z.keys[key]
		i := slices.IndexFunc(zooTable, func(r zooRow) bool { return r.matches(name) })
		if i < 0 || zooTable[i].form.read == nil {
			continue
		}
		canonical, ok, err := zooTable[i].form.read(value)
		switch {
		case err != nil:
			return bad(key, err)
		case ok:
			z.keys[key] = canonical
		default:
			log.Warn("not a number, so the key has no effect, as in ZooKeeper", "file", z.place(name), "key", key, "value", value)
			delete(z.keys, key)
		}
	}
	return nil
}
