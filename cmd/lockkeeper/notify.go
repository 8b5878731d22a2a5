package main

import (
	"log/slog"
	"net"
	"time"
)

// Announcements for tellManager.
const (
	nowReady    = "READY=1"
	nowStopping = "STOPPING=1"
)

// tellManager sends an announcement to the service manager, as sd_notify(3) describes it. It is for a
// unit with Type=notify. Under no manager that wants to know, there is no NOTIFY_SOCKET.
func tellManager(getenv func(string) string, log *slog.Logger, announcement string) {
	name := getenv("NOTIFY_SOCKET") // a path or, with @, an abstract socket, as package net takes it
	if name == "" {
		return
	}
	c, err := net.Dial("unixgram", name)
	if err == nil {
		defer c.Close()
		c.SetWriteDeadline(time.Now().Add(time.Second)) // its queue may be full
		_, err = c.Write([]byte(announcement))
	}
	if err != nil {
		log.Warn("cannot tell the service manager", "what", announcement, "NOTIFY_SOCKET", name, "error", err)
	}
}
