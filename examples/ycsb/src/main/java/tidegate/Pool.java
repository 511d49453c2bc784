package tidegate;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import java.util.concurrent.Callable;
import net.spy.memcached.AddrUtil;
import net.spy.memcached.MemcachedClient;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;
import site.ycsb.StringByteIterator;

/**
 * YCSB on a pool of keys and values, in which a record is one value. Each of YCSB's threads has a
 * connection of its own. The property {@code memcached} says where the gateway offers the pool,
 * 127.0.0.1:11211 by default. How to build and run it is in docs/src/clients.md.
 *
 * <p>An update replaces the whole record, so workloads need {@code writeallfields=true}. The
 * protocol of memcached cannot scan.
 */
public final class Pool extends DB {
  private MemcachedClient client;

  @Override
  public void init() throws DBException {
    String address = getProperties().getProperty("memcached", "127.0.0.1:11211");
    try {
      client = new MemcachedClient(AddrUtil.getAddresses(address));
    } catch (IOException error) {
      throw new DBException(error);
    }
  }

  @Override
  public void cleanup() {
    client.shutdown();
  }

  @Override
  public Status read(
      String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    @SuppressWarnings("unchecked")
    Map<String, String> record = (Map<String, String>) client.get(table + ':' + key);
    if (record == null) {
      return Status.NOT_FOUND;
    }
    record.forEach((field, value) -> {
      if (fields == null || fields.contains(field)) {
        result.put(field, new StringByteIterator(value));
      }
    });
    return Status.OK;
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    return status(() -> client.set(table + ':' + key, 0, record(values)).get());
  }

  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    return status(() -> client.replace(table + ':' + key, 0, record(values)).get());
  }

  @Override
  public Status delete(String table, String key) {
    return status(() -> client.delete(table + ':' + key).get());
  }

  @Override
  public Status scan(
      String table,
      String startkey,
      int recordcount,
      Set<String> fields,
      Vector<HashMap<String, ByteIterator>> result) {
    return Status.NOT_IMPLEMENTED;
  }

  private static HashMap<String, String> record(Map<String, ByteIterator> values) {
    return new HashMap<>(StringByteIterator.getStringMap(values));
  }

  private static Status status(Callable<Boolean> done) {
    try {
      return done.call() ? Status.OK : Status.ERROR;
    } catch (Exception error) {
      return Status.ERROR;
    }
  }
}
