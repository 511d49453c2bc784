// Files by every way that Node knows, with nothing said about times.
'use strict';

const crypto = require('crypto');
const fs = require('fs');
const path = require('path');
const { execFileSync, spawn, spawnSync } = require('child_process');
const { pipeline } = require('stream/promises');
const { Worker, isMainThread } = require('worker_threads');

const digest = (name) => crypto.createHash('md5').update(fs.readFileSync(name)).digest('hex');

function synchronous() {
    fs.writeFileSync('plain', 'x'.repeat(100000));
    fs.appendFileSync('plain', 'end');
    const file = fs.openSync('plain', 'r+');
    fs.writeSync(file, 'five', 5);
    fs.writevSync(file, [Buffer.from('a'), Buffer.from('bc')], 50);
    const piece = Buffer.alloc(20);
    console.log(fs.readSync(file, piece, 0, 20, 0), piece.toString());
    fs.ftruncateSync(file, 70000);
    fs.fsyncSync(file);
    console.log(fs.fstatSync(file).size);
    fs.closeSync(file);
    fs.mkdirSync('a/b/c', { recursive: true });
    fs.renameSync('plain', 'a/plain');
    fs.symlinkSync('plain', 'a/link');
    fs.copyFileSync('data/large', 'copied');
    console.log(fs.readdirSync('a').sort(), fs.existsSync('a/x'), digest('copied'));
    for (const wrong of [() => fs.readFileSync('missing'), () => fs.rmdirSync('data')]) {
        try {
            wrong();
        } catch (error) {
            console.log(error.code, error.message);
        }
    }
}

async function asynchronous() {
    await fs.promises.writeFile('promised', Buffer.alloc(300000, 7));
    await fs.promises.cp('data', 'tree', { recursive: true, verbatimSymlinks: true });
    const handles = await Promise.all(
        [...Array(20).keys()].map((number) => fs.promises.open(`file-${number}`, 'w')));
    await Promise.all(handles.map((handle, number) => handle.writeFile(`${number}`.repeat(9000))));
    await Promise.all(handles.map(async (handle) => {
        await handle.datasync();
        await handle.close();
    }));
    console.log((await fs.promises.readdir('.')).filter((name) => name.startsWith('file-')).length);
    await fs.promises.open('missing').catch((error) => console.log(error.code, error.errno));
}

async function streams() {
    await pipeline(fs.createReadStream('data/large'), fs.createWriteStream('streamed'));
    await pipeline(
        fs.createReadStream('data/large', { start: 100, end: 200000, highWaterMark: 777 }),
        crypto.createHash('md5'), fs.createWriteStream('hashed'));
    console.log(digest('streamed'), digest('hashed'));
}

async function processes() {
    console.log(execFileSync('cat', ['data/deep/text']).length);
    console.log(spawnSync('sh', ['-c', 'echo err >&2; exit 7']).status);
    console.log(spawnSync('sh', ['-c', 'kill -9 $$']).signal);
    const child = spawn('cat', [], {
        stdio: [fs.openSync('data/odd'), fs.openSync('through', 'w'), 'inherit'],
    });
    console.log(await new Promise((done) => child.on('close', done)), digest('through'));
    const script = "require('fs').writeFileSync('from-worker', 'w'.repeat(50000))";
    const worker = new Worker(script, { eval: true });
    console.log(await new Promise((done) => worker.on('exit', done)), digest('from-worker'));
}

(async () => {
    if (!isMainThread) return;
    for (const step of [synchronous, asynchronous, streams, processes]) {
        console.log('--', step.name, path.basename(process.cwd()));
        await step();
    }
})();
