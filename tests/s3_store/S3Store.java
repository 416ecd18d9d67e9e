// An S3 server over a folder, on the loopback interface, for requests that one pair of keys has signed.
// Arguments: the folder and the bucket to make. The keys are in STORE_KEY and STORE_SECRET, the port in
// SERVER_PORT (0: a free one). Prints the port; ends with its input.

import java.io.PrintStream;
import java.net.URI;
import java.util.Properties;
import org.gaul.s3proxy.AuthenticationType;
import org.gaul.s3proxy.S3Proxy;
import org.jclouds.ContextBuilder;
import org.jclouds.blobstore.BlobStore;
import org.jclouds.blobstore.BlobStoreContext;

public class S3Store {
  public static void main(String[] given) throws Exception {
    PrintStream answer = System.out;
    System.setOut(System.err); // for its log
    Properties properties = new Properties();
    properties.setProperty("jclouds.filesystem.basedir", given[0]);
    BlobStore store =
        ContextBuilder.newBuilder("filesystem-nio2")
            .credentials("unused", "unused")
            .overrides(properties)
            .build(BlobStoreContext.class)
            .getBlobStore();
    store.createContainerInLocation(null, given[1]);
    S3Proxy server =
        S3Proxy.builder()
            .blobStore(store)
            .endpoint(URI.create("http://127.0.0.1:" + System.getenv("SERVER_PORT")))
            .awsAuthentication(AuthenticationType.AWS_V4, System.getenv("STORE_KEY"), System.getenv("STORE_SECRET"))
            .build();
    server.start();
    answer.println(server.getPort());
    System.in.read();
    System.exit(0);
  }
}
