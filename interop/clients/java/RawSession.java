import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.Socket;
import org.apache.jute.BinaryInputArchive;
import org.apache.jute.BinaryOutputArchive;
import org.apache.jute.Record;
import org.apache.zookeeper.proto.ConnectRequest;
import org.apache.zookeeper.proto.ConnectResponse;
import org.apache.zookeeper.proto.ReplyHeader;
import org.apache.zookeeper.proto.RequestHeader;

/** A session that sends nothing of itself, and no ping. */
final class RawSession implements AutoCloseable {
    final ConnectResponse session = new ConnectResponse();
    private final Socket socket;
    private int xid;

    /** Opens a session, or resumes one if the id is not 0. */
    RawSession(String address, int timeoutMs, long id, byte[] password) throws IOException {
        int colon = address.lastIndexOf(':');
        socket = new Socket(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
        socket.setSoTimeout((int) Cases.PATIENCE_MS);
        send(new ConnectRequest(0, 0, timeoutMs, id, password, false));
        session.deserialize(receive(), "");
    }

    /** Sends a request, and fails unless it succeeds. */
    void call(int op, Record request) throws IOException {
        send(new RequestHeader(++xid, op), request);
        ReplyHeader reply = new ReplyHeader();
        reply.deserialize(receive(), "");
        Cases.equal(0, reply.getErr(), "the code of a raw request");
    }

    private void send(Record... records) throws IOException {
        ByteArrayOutputStream frame = new ByteArrayOutputStream();
        for (Record r : records) {
            r.serialize(BinaryOutputArchive.getArchive(frame), "");
        }
        DataOutputStream out = new DataOutputStream(socket.getOutputStream());
        out.writeInt(frame.size());
        out.write(frame.toByteArray());
    }

    private BinaryInputArchive receive() throws IOException {
        DataInputStream in = new DataInputStream(socket.getInputStream());
        byte[] frame = new byte[in.readInt()];
        in.readFully(frame);
        return BinaryInputArchive.getArchive(new java.io.ByteArrayInputStream(frame));
    }

    @Override
    public void close() throws IOException {
        socket.close();
    }
}
