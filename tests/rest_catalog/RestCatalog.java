// Iceberg's REST catalog of its own tests, on the loopback interface, for requests with one token.
// Arguments: the JDBC address of its database and its warehouse. The token is in REST_TOKEN, and the properties of an object store,
// one a line, in REST_FILES, the port in SERVER_PORT (0: a free one). Prints the port; ends with its input.

import jakarta.servlet.DispatcherType;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.FilterHolder;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

public class RestCatalog {
  public static void main(String[] given) throws Exception {
    Map<String, String> properties =
        new HashMap<>(
            Map.of(
                "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
                "uri", given[0],
                "warehouse", given[1],
                "jdbc.schema-version", "V1",
                "jdbc.busy_timeout", "30000",
                "clients", "1",
                "unique-table-location", "true"));
    System.getenv().getOrDefault("REST_FILES", "").lines().forEach(
        line -> properties.put(line.split("=", 2)[0], line.split("=", 2)[1]));
    Catalog catalog = CatalogUtil.buildIcebergCatalog("rest", properties, new Configuration());
    Filter authorized =
        (request, response, chain) -> {
          String sent = ((HttpServletRequest) request).getHeader("Authorization");
          if (("Bearer " + System.getenv("REST_TOKEN")).equals(sent)) {
            chain.doFilter(request, response);
          } else {
            ((HttpServletResponse) response).sendError(401);
          }
        };
    ServletContextHandler context = new ServletContextHandler();
    context.addFilter(new FilterHolder(authorized), "/*", EnumSet.of(DispatcherType.REQUEST));
    context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    Server server = new Server(new InetSocketAddress(InetAddress.getLoopbackAddress(), Integer.parseInt(System.getenv("SERVER_PORT"))));
    server.setHandler(context);
    server.start();
    System.out.println(((ServerConnector) server.getConnectors()[0]).getLocalPort());
    System.in.read();
    System.exit(0);
  }
}
