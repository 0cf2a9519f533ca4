// What a Kubernetes API server says of custom resources, without the server: its own packages, called in the order of
// apiextensions-apiserver's customresource_handler.go and registry/customresource/strategy.go. Of volumes and claims,
// which are no custom resources, it knows the fields. The arguments are files with CustomResourceDefinitions. Each line
// of standard input is {"object": …, "old": …, "webhooks": …}, a creation where there is no old one, with JobSet's
// webhooks where they are asked for; each line of the output is the answer: {"status": …, "message": …, "object": …},
// the object with defaults.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	integers "k8s.io/apimachinery/pkg/util/json" // numbers without a fraction stay integers
	"k8s.io/apimachinery/pkg/util/validation/field"
	limits "k8s.io/apiserver/pkg/apis/cel"
	"kube/crdcheck/webhooks"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

type object = map[string]any

type question struct {
	Object   object `json:"object"`
	Old      object `json:"old"`
	Webhooks bool   `json:"webhooks"`
}

type answer struct {
	Status  int    `json:"status"`
	Message string `json:"message"`
	Object  object `json:"object,omitempty"`
}

// One version of a kind.
type kind struct {
	schema *structural.Structural
	values validation.SchemaValidator
	rules  *cel.Validator
}

// Kinds of Kubernetes itself, by apiVersion and kind, as far as runs have them beside their JobSet.
var core = map[string]any{
	"v1 PersistentVolume":      corev1.PersistentVolume{},
	"v1 PersistentVolumeClaim": corev1.PersistentVolumeClaim{},
}

func checkFields(told object, kind any) answer {
	typed := reflect.New(reflect.TypeOf(kind)).Interface()
	strict, err := strictjson.UnmarshalStrict(must(json.Marshal(told)), typed)
	if err != nil {
		strict = []error{err}
	}
	if len(strict) > 0 {
		return answer{400, "strict decoding error: " + errors.Join(strict...).Error(), nil}
	}
	return answer{201, "", told}
}

func (k *kind) check(asked question) answer {
	unknown := pruning.PruneWithOptions(asked.Object, k.schema, true,
		structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	if len(unknown) > 0 {
		for i, path := range unknown {
			unknown[i] = fmt.Sprintf("unknown field %q", path)
		}
		return answer{400, "strict decoding error: " + strings.Join(unknown, ", "), nil}
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(asked.Object, k.schema)
	defaulting.Default(asked.Object, k.schema)
	if asked.Webhooks {
		changed, err := webhooks.Default(asked.Object)
		if err != nil {
			return denied("mjobset.kb.io", err)
		}
		asked.Object = changed
	}
	found := k.valuesOf(asked)
	found = append(found, objectmeta.Validate(context.Background(), nil, asked.Object, k.schema, false)...)
	found = append(found, listtype.ValidateListSetsAndMaps(nil, k.schema, asked.Object)...)
	if len(found) == 0 { // rules are not asked of values that have the wrong type
		var old any // no nil map: the rules about changes would be asked of a creation
		if asked.Old != nil {
			old = asked.Old
		}
		found, _ = k.rules.Validate(context.Background(), nil, k.schema, asked.Object, old, limits.RuntimeCELCostBudget)
	}
	if len(found) > 0 {
		return answer{422, found.ToAggregate().Error(), nil}
	}
	if asked.Webhooks {
		if err := webhooks.Validate(asked.Object, asked.Old); err != nil {
			return denied("vjobset.kb.io", err)
		}
	}
	if asked.Old != nil {
		return answer{200, "", asked.Object}
	}
	return answer{201, "", asked.Object}
}

func denied(webhook string, err error) answer {
	code := 403
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		code = int(status.Status().Code)
	}
	return answer{code, fmt.Sprintf("admission webhook %q denied the request: %s", webhook, err), nil}
}

func (k *kind) valuesOf(asked question) field.ErrorList {
	if asked.Old != nil {
		return validation.ValidateCustomResourceUpdate(nil, asked.Object, asked.Old, k.values)
	}
	return validation.ValidateCustomResource(nil, asked.Object, k.values)
}

func must[T any](found T, err error) T {
	if err != nil {
		panic(err)
	}
	return found
}

// The kinds of a file, by apiVersion and kind.
func read(path string, kinds map[string]*kind) {
	var told v1.CustomResourceDefinition
	if err := yaml.Unmarshal(must(os.ReadFile(path)), &told); err != nil {
		panic(fmt.Errorf("%s: %w", path, err))
	}
	v1.SetDefaults_CustomResourceDefinition(&told)
	for _, version := range told.Spec.Versions {
		var schema apiextensions.JSONSchemaProps
		if err := v1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
			version.Schema.OpenAPIV3Schema, &schema, nil); err != nil {
			panic(fmt.Errorf("%s: %w", path, err))
		}
		shape := must(structural.NewStructural(&schema))
		values, _, err := validation.NewSchemaValidator(&schema)
		if err != nil {
			panic(fmt.Errorf("%s: %w", path, err))
		}
		name := fmt.Sprintf("%s/%s %s", told.Spec.Group, version.Name, told.Spec.Names.Kind)
		kinds[name] = &kind{shape, values, cel.NewValidator(shape, true, limits.PerCallLimit)}
	}
}

func main() {
	kinds := map[string]*kind{}
	for _, path := range os.Args[1:] {
		read(path, kinds)
	}
	decoder, encoder := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for decoder.More() {
		var line json.RawMessage
		var asked question
		if err := decoder.Decode(&line); err != nil {
			panic(err)
		}
		if err := integers.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		name := fmt.Sprintf("%v %v", asked.Object["apiVersion"], asked.Object["kind"])
		said := answer{404, "the server could not find the requested resource", nil}
		if found := kinds[name]; found != nil {
			said = found.check(asked)
		} else if found := core[name]; found != nil {
			said = checkFields(asked.Object, found)
		}
		if err := encoder.Encode(said); err != nil {
			panic(err)
		}
	}
}
