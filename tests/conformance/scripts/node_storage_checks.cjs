// @google-cloud/storage for Node.
const crypto = require('crypto');
const fs = require('fs');
const path = require('path');
const zlib = require('zlib');
const {Storage} = require('@google-cloud/storage');
const {check, assert, refused, main} = require('./checks.cjs');

const storage = new Storage({projectId: process.env.GOOGLE_CLOUD_PROJECT});
const bucket = storage.bucket('sim-bucket');
const WORK = process.env.CONFORMANCE_WORK;
const big = crypto.randomBytes(3_000_000);

const text = async file => (await file.download())[0].toString();

check('a small file, as it is saved by default (resumable)', async () => {
  await bucket.file('a.txt').save('hello');
  assert((await text(bucket.file('a.txt'))) === 'hello');
});
check('a small file at once', async () => {
  await bucket.file('b.txt').save('hello', {resumable: false, metadata: {contentType: 'text/x-test', metadata: {k: 'v'}}});
  const [metadata] = await bucket.file('b.txt').getMetadata();
  assert(metadata.contentType === 'text/x-test' && metadata.metadata.k === 'v', metadata);
});
check('an empty file', async () => {
  await bucket.file('empty').save('');
  assert((await text(bucket.file('empty'))) === '');
});
check('3 MB in chunks, read whole and by ranges', async () => {
  await bucket.file('big').save(big, {chunkSize: 1024 * 1024});
  assert((await bucket.file('big').download())[0].equals(big));
  assert((await bucket.file('big').download({start: 1000, end: 1999}))[0].equals(big.subarray(1000, 2000)));
});
check('bucket.upload of a file, compressed on the way', async () => {
  fs.writeFileSync(path.join(WORK, 'up'), 'text '.repeat(1000));
  await bucket.upload(path.join(WORK, 'up'), {destination: 'packed', gzip: true});
  const [metadata] = await bucket.file('packed').getMetadata();
  assert(metadata.contentEncoding === 'gzip', metadata);
  assert((await text(bucket.file('packed'))) === 'text '.repeat(1000));
  const [raw] = await bucket.file('packed').download({decompress: false});
  assert(zlib.gunzipSync(raw).toString() === 'text '.repeat(1000));
});
check('streams to and from a file', async () => {
  await new Promise((done, failed) => {
    const stream = bucket.file('stream').createWriteStream();
    stream.on('finish', done).on('error', failed);
    stream.end(big);
  });
  const parts = [];
  for await (const part of bucket.file('stream').createReadStream()) parts.push(part);
  assert(Buffer.concat(parts).equals(big));
});
check('preconditions by generation', async () => {
  const file = bucket.file('cas');
  await file.save('one', {preconditionOpts: {ifGenerationMatch: 0}});
  await refused(file.save('two', {preconditionOpts: {ifGenerationMatch: 0}}), 412);
});
check('files are listed with prefix and delimiter, in pages', async () => {
  for (const name of ['l/1', 'l/2', 'l/3', 'l/d/4']) await bucket.file(name).save('x', {resumable: false});
  const [files] = await bucket.getFiles({prefix: 'l/', maxResults: 2, autoPaginate: false});
  assert(files.length === 2);
  const [all, , answer] = await bucket.getFiles({prefix: 'l/', delimiter: '/', autoPaginate: false});
  assert(all.length === 3 && answer.prefixes[0] === 'l/d/', answer);
});
check('a file is copied, moved and renamed', async () => {
  await bucket.file('a.txt').copy(bucket.file('copy'));
  await bucket.file('copy').move('moved');
  assert((await text(bucket.file('moved'))) === 'hello');
  assert(!(await bucket.file('copy').exists())[0]);
});
check('files are combined', async () => {
  await bucket.combine(['a.txt', 'b.txt'], bucket.file('both'));
  assert((await text(bucket.file('both'))) === 'hellohello');
});
check('metadata is changed', async () => {
  await bucket.file('a.txt').setMetadata({cacheControl: 'no-cache', metadata: {a: '1'}});
  assert((await bucket.file('a.txt').getMetadata())[0].cacheControl === 'no-cache');
});
check('what is not there is 404', async () => {
  await refused(bucket.file('none').download(), 404);
  await refused(storage.bucket('no-such-bucket-1').getMetadata(), 404);
});
check('a bucket is made with labels, versioning and a lifecycle', async () => {
  const [made] = await storage.createBucket('node-bucket', {location: 'us-central2'});
  await made.setLabels({team: 'a'});
  await made.setMetadata({versioning: {enabled: true}});
  await made.addLifecycleRule({action: {type: 'Delete'}, condition: {age: 3}});
  const [metadata] = await made.getMetadata();
  assert(metadata.labels.team === 'a' && metadata.versioning.enabled, metadata);
});
check('deleteFiles with versions and force', async () => {
  const made = storage.bucket('node-bucket');
  await made.file('v').save('1');
  await made.file('v').save('2');
  assert((await made.getFiles({versions: true}))[0].length === 2);
  await made.deleteFiles({versions: true, force: true});
  assert((await made.getFiles({versions: true}))[0].length === 0);
  await made.delete();
});
check('a bucket policy is read and set, permissions are tested', async () => {
  const [policy] = await bucket.iam.getPolicy({requestedPolicyVersion: 3});
  policy.bindings.push({role: 'roles/storage.objectViewer', members: ['user:a@b.c']});
  await bucket.iam.setPolicy(policy);
  const [now] = await bucket.iam.getPolicy();
  assert(now.bindings.some(each => each.role === 'roles/storage.objectViewer'), now);
  const [granted] = await bucket.iam.testPermissions(['storage.objects.get']);
  assert(granted['storage.objects.get'], granted);
});
check('holds keep a file', async () => {
  await bucket.file('held').save('x');
  await bucket.file('held').setMetadata({temporaryHold: true});
  await refused(bucket.file('held').delete(), 403);
  await bucket.file('held').setMetadata({temporaryHold: false});
  await bucket.file('held').delete();
});
check('the transfer manager uploads and downloads many files', async () => {
  const {TransferManager} = require('@google-cloud/storage');
  const manager = new TransferManager(bucket);
  const files = ['m1', 'm2', 'm3'].map(name => path.join(WORK, name));
  for (const each of files) fs.writeFileSync(each, path.basename(each));
  await manager.uploadManyFiles(files, {customDestinationBuilder: each => `many/${path.basename(each)}`});
  const found = await manager.downloadManyFiles('many/');
  assert(found.map(each => each[0].toString()).sort().join() === 'm1,m2,m3');
});
check('access control lists are refused as not simulated', async () => {
  await refused(bucket.acl.get(), 'does not implement');
});
check('a notification is refused as not simulated', async () => {
  await refused(bucket.getNotifications(), 'does not implement');
});

main();
