package io.github.lockkeeper.test;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.DigestInputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Locale;
import java.util.Set;

/** Finds the program: one that the user names, or else the one in the jar for this platform. */
final class Binary {
    private static final Set<PosixFilePermission> OWNER_ONLY = PosixFilePermissions.fromString("rwx------");

    private static Path extracted; // by this JVM

    private Binary() {}

    /** Returns the path of the program. */
    static synchronized Path find() {
        String named = System.getProperty("lockkeeper.binary", System.getenv("LOCKKEEPER_BINARY"));
        if (named != null && !named.isEmpty()) {
            return Paths.get(named);
        }
        if (extracted == null || !Files.exists(extracted)) { // something may have cleaned up
            try {
                extracted = extract(platform());
            } catch (IOException e) {
                throw new LockkeeperException("cannot extract the lockkeeper program to " + System.getProperty("java.io.tmpdir")
                        + "; the property lockkeeper.binary or the variable LOCKKEEPER_BINARY can name one: " + e, e);
            }
        }
        return extracted;
    }

    /** Returns the platform of this JVM, as in the name of its artifact. */
    static String platform() {
        return platform(System.getProperty("os.name"), System.getProperty("os.arch"));
    }

    static String platform(String name, String arch) {
        String system = name.toLowerCase(Locale.ROOT);
        String os = system.startsWith("mac") || system.startsWith("darwin") ? "darwin" : system.startsWith("windows") ? "windows" : system;
        String machine = arch.toLowerCase(Locale.ROOT);
        return os + '-' + (machine.equals("amd64") ? "x86_64" : machine.equals("arm64") ? "aarch64" : machine);
    }

    private static Path extract(String platform) throws IOException {
        String name = platform.startsWith("windows") ? "lockkeeper.exe" : "lockkeeper";
        String resource = "/META-INF/lockkeeper/" + platform + '/' + name;
        String hash;
        try (InputStream in = Binary.class.getResourceAsStream(resource + ".sha256")) {
            if (in == null) {
                throw new LockkeeperException(0, "the artifact io.github.lockkeeper:lockkeeper-server-" + platform
                        + " is not on the class path, and neither the property lockkeeper.binary nor the variable LOCKKEEPER_BINARY names a lockkeeper program");
            }
            hash = new String(in.readAllBytes(), StandardCharsets.US_ASCII).trim();
        }
        Path directory = directory();
        Path program = directory.resolve("lockkeeper-" + hash.substring(0, 16) + name.substring("lockkeeper".length()));
        if (Files.isRegularFile(program, LinkOption.NOFOLLOW_LINKS) && hash.equals(hashOf(program))) {
            return program;
        }
        // Under a name of its own first, since several JVMs may do this at once.
        Path part = Files.createTempFile(directory, "lockkeeper-", ".part");
        try {
            try (InputStream in = Binary.class.getResourceAsStream(resource)) {
                Files.copy(in, part, StandardCopyOption.REPLACE_EXISTING);
            }
            if (!hash.equals(hashOf(part))) {
                throw new IOException(resource + " does not have its checksum");
            }
            if (isPosix(part)) {
                Files.setPosixFilePermissions(part, OWNER_ONLY);
            }
            try {
                Files.move(part, program, StandardCopyOption.ATOMIC_MOVE);
            } catch (IOException e) {
                // Windows refuses to replace a program that runs: another JVM was faster.
                if (!Files.exists(program) || !hash.equals(hashOf(program))) {
                    throw e;
                }
            }
            return program;
        } finally {
            Files.deleteIfExists(part);
        }
    }

    /** Returns a directory that nobody but this user can write to. */
    private static Path directory() throws IOException {
        Path tmp = Paths.get(System.getProperty("java.io.tmpdir"));
        Path own = tmp.resolve("lockkeeper-" + System.getProperty("user.name").replaceAll("[^A-Za-z0-9._-]", "_"));
        if (!isPosix(tmp)) { // on Windows it is the user's own
            return Files.createDirectories(own);
        }
        try {
            Files.createDirectory(own, PosixFilePermissions.asFileAttribute(OWNER_ONLY));
        } catch (FileAlreadyExistsException e) {
            // by an earlier run or, in a directory for all users, by anybody
        }
        Path probe = Files.createTempFile("lockkeeper-", ".owner");
        try {
            if (Files.isDirectory(own, LinkOption.NOFOLLOW_LINKS) && Files.getOwner(own).equals(Files.getOwner(probe))
                    && OWNER_ONLY.equals(Files.getPosixFilePermissions(own))) {
                return own;
            }
        } finally {
            Files.delete(probe);
        }
        return Files.createTempDirectory("lockkeeper-");
    }

    private static boolean isPosix(Path path) {
        return path.getFileSystem().supportedFileAttributeViews().contains("posix");
    }

    private static String hashOf(Path file) throws IOException {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            try (InputStream in = new DigestInputStream(Files.newInputStream(file), digest)) {
                in.transferTo(OutputStream.nullOutputStream());
            }
            StringBuilder text = new StringBuilder();
            for (byte b : digest.digest()) {
                text.append(String.format("%02x", b));
            }
            return text.toString();
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e); // every JVM has SHA-256
        }
    }
}
