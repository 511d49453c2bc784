# Makes what one program of `tidegate-lab bench programs` works on: see programs.rs.
#
# Arguments: the program, and a directory of its own, which is there and empty. What cannot be made
# is told on standard error.

need() {
    command -v "$1" > /dev/null || { echo "$1 is not installed" >&2; exit 1; }
}

# Bytes that nothing compresses: zeros would be holes for some programs.
data() {
    head -c "$1" /dev/urandom > data
}

# So many megabytes in files of 32 KiB, a hundred in a directory.
tree() {
    data "$1"
    mkdir tree
    split -b 32k -a 4 -d data tree/f
    rm data
    for first in tree/f??00; do
        number=${first#tree/f}
        mkdir "tree/${number%00}"
        mv tree/f"${number%00}"?? "tree/${number%00}/"
    done
}

cd "$2"
need "$1"
case $1 in
fio) data 64M ;;
cp | dd | qemu-img) data 256M ;;
tar) tree 125M ;;
rsync) tree 63M ;;
sqlite3)
    cat > script <<'SQL'
pragma synchronous = off;
create table t (id integer primary key, name text, body blob);
begin;
with recursive n(i) as (select 1 union all select i + 1 from n where i < 40000)
insert into t select i, 'name ' || (i * 7919 % 40000), randomblob(400) from n;
commit;
create index by_name on t (name);
update t set body = zeroblob(200) where id % 7 = 0;
delete from t where id % 3 = 0;
select count(*), sum(length(body)) from t;
vacuum;
SQL
    ;;
git)
    tree 63M
    export HOME="$2" GIT_CONFIG_NOSYSTEM=1
    git init -q tree
    git -C tree add -A
    git -C tree -c user.name=a -c user.email=a@b commit -q -m one
    ;;
python3)
    data 64M
    cat > work.py <<'PYTHON'
import hashlib, os
digest = hashlib.sha256()
with open("data", "rb") as data, open("copy", "wb") as copy:
    while piece := data.read(65536):
        digest.update(piece)
        copy.write(piece)
os.makedirs("small", exist_ok=True)
for number in range(1000):
    with open(f"small/{number}", "w") as small:
        small.write(f"{number}\n" * 500)
total = sum(len(open(f"small/{number}").read()) for number in range(1000))
PYTHON
    ;;
java)
    need javac
    data 128M
    cat > Work.java <<'JAVA'
import java.io.*;
import java.nio.*;
import java.nio.channels.*;
import java.nio.file.*;

public class Work {
    public static void main(String[] arguments) throws Exception {
        byte[] piece = new byte[65536];
        try (InputStream in = new FileInputStream("data");
                OutputStream out = new FileOutputStream("copy")) {
            for (int count; (count = in.read(piece)) > 0; ) {
                out.write(piece, 0, count);
            }
        }
        ByteBuffer page = ByteBuffer.allocateDirect(16384);
        try (FileChannel channel = FileChannel.open(Path.of("copy"), StandardOpenOption.READ)) {
            for (long at = 0; at + 16384 <= channel.size(); at += 16384) {
                page.clear();
                channel.read(page, at);
            }
        }
    }
}
JAVA
    javac Work.java
    ;;
node)
    data 128M
    cat > work.js <<'NODE'
const fs = require("fs");
const piece = Buffer.alloc(65536);
const [from, to] = [fs.openSync("data", "r"), fs.openSync("copy", "w")];
for (let count; (count = fs.readSync(from, piece)) > 0; ) fs.writeSync(to, piece, 0, count);
fs.closeSync(to);
fs.createReadStream("data", { highWaterMark: 65536 }).pipe(fs.createWriteStream("streamed"));
NODE
    ;;
esac
