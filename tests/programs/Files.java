// Files by every way that Java knows, with nothing said about times.

import java.io.BufferedOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.AsynchronousFileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.stream.Stream;
import java.util.zip.CRC32;

class Main {
    public static void main(String[] arguments) throws Exception {
        streams();
        channels();
        names();
        processes();
    }

    static long checksum(String name) throws IOException {
        CRC32 crc = new CRC32();
        crc.update(Files.readAllBytes(Path.of(name)));
        return crc.getValue();
    }

    static void streams() throws Exception {
        try (OutputStream out = new BufferedOutputStream(new FileOutputStream("streamed"))) {
            for (int number = 0; number < 200000; number++) {
                out.write(number);
            }
        }
        try (InputStream in = new FileInputStream("data/large");
             OutputStream out = new FileOutputStream("copied")) {
            System.out.println(in.transferTo(out));
        }
        try (RandomAccessFile file = new RandomAccessFile("random", "rws")) {
            file.setLength(100000);
            file.seek(5000);
            file.writeUTF("here");
            file.seek(5000);
            System.out.println(file.readUTF() + " " + file.getFilePointer());
            file.getFD().sync();
        }
        System.out.println(checksum("streamed") + " " + checksum("copied"));
    }

    static void channels() throws Exception {
        Path path = Path.of("channel");
        try (FileChannel channel = FileChannel.open(path, StandardOpenOption.CREATE,
                StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            ByteBuffer[] pieces = {ByteBuffer.wrap(new byte[70000]), ByteBuffer.wrap(new byte[7])};
            System.out.println(channel.write(pieces));
            System.out.println(channel.write(ByteBuffer.wrap("there".getBytes()), 1000));
            ByteBuffer direct = ByteBuffer.allocateDirect(5);
            System.out.println(channel.read(direct, 1000) + " " + channel.size());
            channel.force(true);
            MappedByteBuffer mapped = channel.map(FileChannel.MapMode.READ_WRITE, 0, 80000);
            mapped.put(79999, (byte) 9);
            mapped.force();
            channel.truncate(79000);
        }
        try (FileChannel from = FileChannel.open(Path.of("data/large"));
             FileChannel to = FileChannel.open(Path.of("sent"), StandardOpenOption.CREATE,
                     StandardOpenOption.WRITE)) {
            System.out.println(from.transferTo(3, 500000, to));
            System.out.println(to.transferFrom(from, 500000, 100000));
        }
        try (AsynchronousFileChannel channel = AsynchronousFileChannel.open(Path.of("later"),
                StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
            System.out.println(channel.write(ByteBuffer.wrap(new byte[12345]), 10).get());
        }
        System.out.println(checksum("channel") + " " + checksum("sent") + " " + checksum("later"));
    }

    static void names() throws Exception {
        Files.createDirectories(Path.of("a/b/c"));
        Files.move(Path.of("later"), Path.of("a/b/later"), StandardCopyOption.ATOMIC_MOVE);
        Files.copy(Path.of("data/odd"), Path.of("a/odd"));
        Files.createSymbolicLink(Path.of("a/link"), Path.of("odd"));
        try (Stream<Path> found = Files.walk(Path.of("a"))) {
            found.map(Path::toString).sorted().forEach(System.out::println);
        }
        try {
            Files.readAllBytes(Path.of("missing"));
        } catch (IOException error) {
            System.out.println(error);
        }
        try {
            new FileOutputStream("data").close();
        } catch (IOException error) {
            System.out.println(error.getMessage());
        }
    }

    static void processes() throws Exception {
        Process cat = new ProcessBuilder("cat").redirectInput(Path.of("data/odd").toFile())
                .redirectOutput(Path.of("through").toFile()).start();
        System.out.println(cat.waitFor() + " " + checksum("through"));
        Process failing = new ProcessBuilder("sh", "-c", "exit 7").start();
        System.out.println(failing.waitFor());
        Thread[] threads = new Thread[8];
        for (int number = 0; number < threads.length; number++) {
            String name = "thread-" + number;
            threads[number] = new Thread(() -> {
                try {
                    Files.write(Path.of(name), new byte[100000]);
                } catch (IOException error) {
                    System.out.println(error);
                }
            });
            threads[number].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.exit(0);
    }
}
