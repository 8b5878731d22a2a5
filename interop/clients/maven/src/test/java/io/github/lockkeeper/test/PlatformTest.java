package io.github.lockkeeper.test;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

class PlatformTest {
    @Test
    void artifactsOfPlatforms() {
        assertEquals("linux-x86_64", Binary.platform("Linux", "amd64"));
        assertEquals("linux-aarch64", Binary.platform("Linux", "aarch64"));
        assertEquals("darwin-x86_64", Binary.platform("Mac OS X", "x86_64"));
        assertEquals("darwin-aarch64", Binary.platform("Mac OS X", "aarch64"));
        assertEquals("windows-x86_64", Binary.platform("Windows 11", "amd64"));
        assertEquals("windows-aarch64", Binary.platform("Windows Server 2025", "aarch64"));
    }
}
