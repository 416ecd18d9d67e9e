import java.net.InetSocketAddress;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/**
 * A Hive metastore of the classes that Spark brings, over a Derby database in a folder, on a port of the loopback
 * interface. Arguments: the folder, and the warehouse. Prints the port; ends with its input.
 */
public final class HiveMetastore {
    public static void main(String[] arguments) throws Exception {
        String database = "jdbc:derby:;databaseName=" + arguments[0] + "/metastore;create=true";
        HiveConf conf = new HiveConf();
        conf.set("javax.jdo.option.ConnectionURL", database);
        conf.set("datanucleus.schema.autoCreateAll", "true");
        conf.set("datanucleus.connectionPoolingType", "HikariCP");
        conf.set("hive.metastore.schema.verification", "false");
        conf.set("hive.metastore.warehouse.dir", arguments[1]);
        conf.set("hive.metastore.disallow.incompatible.col.type.changes",
            System.getenv().getOrDefault("SERVER_KEEPS_TYPES", "false"));
        TxnDbUtil.prepDb(conf); // the tables of locks, which the metastore makes in Hive's own tests only
        HiveMetaStore.HMSHandler handler = new HiveMetaStore.HMSHandler("metastore", conf, false);
        int port = Integer.parseInt(System.getenv().getOrDefault("SERVER_PORT", "0"));
        TServerSocket socket = new TServerSocket(new InetSocketAddress("127.0.0.1", port));
        TThreadPoolServer server = new TThreadPoolServer(
            new TThreadPoolServer.Args(socket).processor(
                new TSetIpAddressProcessor<>(HiveMetaStore.newRetryingHMSHandler(handler, conf, true))));
        Thread serving = new Thread(server::serve);
        serving.setDaemon(true);
        serving.start();
        System.out.println(socket.getServerSocket().getLocalPort());
        System.in.transferTo(java.io.OutputStream.nullOutputStream());
        System.exit(0);
    }
}
