// @google-cloud/compute for Node; it heeds no proxy, so it is told where the simulator is.
const compute = require('@google-cloud/compute');
// Of the version that the library itself has.
const beside = (name, where) => require.resolve(name, {paths: [where]});
const gax = beside('google-gax', require.resolve('@google-cloud/compute'));
const {OAuth2Client} = require(beside('google-auth-library', gax));
const {check, assert, refused, main} = require('./checks.cjs');

const project = process.env.GOOGLE_CLOUD_PROJECT;
const zone = 'us-central2-b';
const there = new URL(process.env.CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE);
const authClient = new OAuth2Client();
authClient.setCredentials({access_token: process.env.GOOGLE_BEARER_TOKEN});
const options = {apiEndpoint: there.hostname, port: Number(there.port), protocol: 'http', fallback: 'rest', authClient};
const disks = new compute.DisksClient(options);
const snapshots = new compute.SnapshotsClient(options);
const operations = new compute.ZoneOperationsClient(options);

async function all(found) {
  const rows = [];
  for await (const row of found) rows.push(row);
  return rows;
}

async function done(operation) {
  const [ended] = await operations.wait({project, zone, operation: operation.latestResponse.name});
  assert(ended.status === 'DONE' && !ended.error, ended);
}

const type = name => `projects/${project}/zones/${zone}/diskTypes/${name}`;

check('the project', async () => {
  const [found] = await new compute.ProjectsClient(options).get({project});
  assert(found.name === project);
});
check('zones and regions', async () => {
  assert((await all(new compute.ZonesClient(options).listAsync({project}))).some(each => each.name === zone));
  assert((await all(new compute.RegionsClient(options).listAsync({project}))).some(each => each.name === 'us-central2'));
});
check('a disk is made and read', async () => {
  const [made] = await disks.insert({project, zone, diskResource: {name: 'd', sizeGb: 10, type: type('pd-balanced')}});
  await done(made);
  const [disk] = await disks.get({project, zone, disk: 'd'});
  assert(String(disk.sizeGb) === '10' && disk.status === 'READY', disk);
});
check('disks are listed, in a zone and everywhere', async () => {
  assert((await all(disks.listAsync({project, zone, filter: 'name=d'}))).length === 1);
  const places = await all(disks.aggregatedListAsync({project}));
  assert(places.some(([name, list]) => name === `zones/${zone}` && list.disks.length === 1), places);
});
check('a disk grows', async () => {
  const [changed] = await disks.resize({project, zone, disk: 'd', disksResizeRequestResource: {sizeGb: 20}});
  await done(changed);
  assert(String((await disks.get({project, zone, disk: 'd'}))[0].sizeGb) === '20');
});
check('labels are set by fingerprint', async () => {
  const [disk] = await disks.get({project, zone, disk: 'd'});
  const body = {labels: {a: 'b'}, labelFingerprint: disk.labelFingerprint};
  await done((await disks.setLabels({project, zone, resource: 'd', zoneSetLabelsRequestResource: body}))[0]);
  await refused(disks.setLabels({project, zone, resource: 'd', zoneSetLabelsRequestResource: body}), 'ingerprint');
});
check('a snapshot of a disk, and a disk of it', async () => {
  await done((await disks.createSnapshot({project, zone, disk: 'd', snapshotResource: {name: 's'}}))[0]);
  assert((await snapshots.get({project, snapshot: 's'}))[0].diskSizeGb.toString() === '20');
  const diskResource = {name: 'e', sourceSnapshot: 'global/snapshots/s', type: type('pd-balanced')};
  await done((await disks.insert({project, zone, diskResource}))[0]);
});
const tpus = {project, zone: 'us-east5-a'};
const groups = new compute.InstanceGroupManagersClient(options);
async function ended(operations, place, [operation]) {
  const [done] = await operations.wait({...place, operation: operation.latestResponse.name});
  assert(done.status === 'DONE' && !done.error, done);
}
const inZone = answer => ended(operations, tpus, answer);
const anywhere = answer => ended(new compute.GlobalOperationsClient(options), {project}, answer);

check('a group of TPU instances is made of a template', async () => {
  const sourceImage =
    'projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e';
  const properties = {
    machineType: 'ct6e-standard-4t',
    disks: [{boot: true, autoDelete: true, initializeParams: {sourceImage, diskType: 'hyperdisk-balanced'}}],
    networkInterfaces: [{network: 'global/networks/default'}],
    scheduling: {onHostMaintenance: 'TERMINATE'},
  };
  const instanceTemplateResource = {name: 't', properties};
  await anywhere(await new compute.InstanceTemplatesClient(options).insert({project, instanceTemplateResource}));
  const instanceGroupManagerResource =
    {name: 'g', instanceTemplate: 'global/instanceTemplates/t', targetSize: 2, targetSizePolicy: {mode: 'BULK'}};
  await inZone(await groups.insert({...tpus, instanceGroupManagerResource}));
  let found;
  do [found] = await groups.get({...tpus, instanceGroupManager: 'g'}); while (!found.status.isStable);
  assert(found.targetSize === 2 && found.targetSizePolicy.mode === 'BULK', found);
});
check('a group and its members are listed', async () => {
  assert((await all(groups.listAsync(tpus))).map(each => each.name).join() === 'g');
  const members = await all(groups.listManagedInstancesAsync({...tpus, instanceGroupManager: 'g'}));
  assert(members.length === 2 && members.every(each => each.instanceStatus === 'RUNNING'), members);
  const places = await all(groups.aggregatedListAsync({project}));
  assert(places.some(([name, list]) => name === `zones/${tpus.zone}` && list.instanceGroupManagers.length === 1));
});
check('a group is deleted, and then its template', async () => {
  const templates = new compute.InstanceTemplatesClient(options);
  await refused(templates.delete({project, instanceTemplate: 't'}), 'already being used by');
  await inZone(await groups.delete({...tpus, instanceGroupManager: 'g'}));
  await refused(groups.get({...tpus, instanceGroupManager: 'g'}), 'was not found');
  assert((await all(new compute.InstancesClient(options).listAsync(tpus))).length === 0);
  await anywhere(await templates.delete({project, instanceTemplate: 't'}));
});
check('a disk type without a path is refused', async () => {
  await refused(disks.insert({project, zone, diskResource: {name: 'f', type: 'pd-ssd'}}), 'The URL is malformed');
});
check('what is there is not made again, what is not there is not found', async () => {
  await refused(disks.insert({project, zone, diskResource: {name: 'd', sizeGb: 10}}), 'already exists');
  await refused(disks.get({project, zone, disk: 'none'}), 'was not found');
});
check('a disk is deleted', async () => {
  await done((await disks.delete({project, zone, disk: 'e'}))[0]);
  await refused(disks.get({project, zone, disk: 'e'}), 'was not found');
});

main();
