package io.github.lockkeeper.test;

import java.nio.charset.StandardCharsets;
import java.util.Base64;

/** A znode: its data and its Stat. */
public final class Znode {
    private final byte[] data;
    private final Reply stat;

    Znode(Reply reply) {
        data = Base64.getDecoder().decode(reply.text("data"));
        stat = reply.object("stat");
    }

    /**
     * Its data.
     *
     * @return a copy
     */
    public byte[] data() {
        return data.clone();
    }

    /**
     * Its data as text.
     *
     * @return the data, decoded as UTF-8
     */
    public String text() {
        return new String(data, StandardCharsets.UTF_8);
    }

    /**
     * The zxid of its creation, which for the znode of a lock's holder is the fencing token.
     *
     * @return the zxid
     */
    public long czxid() {
        return stat.number("czxid");
    }

    /**
     * The zxid of the last change of its data.
     *
     * @return the zxid
     */
    public long mzxid() {
        return stat.number("mzxid");
    }

    /**
     * The zxid of the last change of its children.
     *
     * @return the zxid
     */
    public long pzxid() {
        return stat.number("pzxid");
    }

    /**
     * When it was created.
     *
     * @return milliseconds since 1970
     */
    public long ctime() {
        return stat.number("ctime");
    }

    /**
     * When its data was changed last.
     *
     * @return milliseconds since 1970
     */
    public long mtime() {
        return stat.number("mtime");
    }

    /**
     * How often its data was changed.
     *
     * @return the version
     */
    public int version() {
        return (int) stat.number("version");
    }

    /**
     * How often its children were changed.
     *
     * @return the version
     */
    public int cversion() {
        return (int) stat.number("cversion");
    }

    /**
     * How often its ACL was changed.
     *
     * @return the version
     */
    public int aversion() {
        return (int) stat.number("aversion");
    }

    /**
     * Whose ephemeral it is.
     *
     * @return the id of the session, or 0 if it is not ephemeral
     */
    public long ephemeralOwner() {
        return stat.session("ephemeralOwner");
    }

    /**
     * How many children it has.
     *
     * @return the number
     */
    public int numChildren() {
        return (int) stat.number("numChildren");
    }

    @Override
    public String toString() {
        return stat.toString();
    }
}
