/**
 * Hadoop's local file system for a session of one machine. Without its native library, which PySpark does not ship,
 * Hadoop runs chmod for every file and directory that it makes: most of what a small file costs, and so of what a batch
 * of many partitions costs. This class sets the same permissions by a call of the JVM. It takes the place of Hadoop's
 * class in the cache of file systems, in which every FileSystem.get of the JVM looks first.
 */
public class MldLocalFileSystem extends org.apache.hadoop.fs.LocalFileSystem {
  public MldLocalFileSystem() { super(new Raw()); }

  public static class Raw extends org.apache.hadoop.fs.RawLocalFileSystem {
    public void setPermission(
        org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission permission)
        throws java.io.IOException {
      // As chmod does, leave a directory the bits by which files in it get its group (setgid).
      java.nio.file.Path file = pathToFile(path).toPath();
      int mode = permission.toShort();
      if (java.nio.file.Files.isDirectory(file, new java.nio.file.LinkOption[0])) {
        Object before = java.nio.file.Files.getAttribute(file, "unix:mode", new java.nio.file.LinkOption[0]);
        mode |= ((Integer) before).intValue() & 06000;
      }
      java.nio.file.Files.setAttribute(file, "unix:mode", Integer.valueOf(mode), new java.nio.file.LinkOption[0]);
    }
  }
}
